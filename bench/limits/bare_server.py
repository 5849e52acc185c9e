"""The bare HTTP server: the same uvicorn and Starlette, with routes that do nothing. `python -m
bench.limits.bare_server URLFILE`.

POST /empty   reads the body, waits `wait_seconds` of it as a long poll does, answers a few bytes
POST /spawn   starts the program named in the body, its output to the file named, and answers
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench.scale import wait_until
from bench.system import ROOT, Scratch


class Wait(msgspec.Struct):
    """What of a sync's body the limit looks at."""

    wait_seconds: float = 0.0


class Spawn(msgspec.Struct):
    """A program to start."""

    argv: list[str]
    stdout: str


_wait = msgspec.json.Decoder(Wait).decode
_spawn = msgspec.json.Decoder(Spawn).decode
_children: list[int] = []


async def empty(request: Request) -> Response:
    """Wait as asked, answer nothing."""
    wait = _wait(await request.body())
    if wait.wait_seconds:
        await asyncio.sleep(wait.wait_seconds)
    return Response(b"{}", media_type="application/json")


async def spawn(request: Request) -> Response:
    """Fork and exec, do not wait."""
    order = _spawn(await request.body())
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    actions = [(os.POSIX_SPAWN_OPEN, 1, order.stdout, flags, 0o600)]
    # Blocking on purpose: this is the bare cost, with nothing else to serve meanwhile.
    _children.append(os.posix_spawnp(order.argv[0], order.argv, os.environ, file_actions=actions))  # noqa: ASYNC221  it is the limit
    while _children and os.waitpid(_children[0], os.WNOHANG)[0]:  # noqa: ASYNC222  never waits
        _children.pop(0)
    return Response(b"{}", media_type="application/json")


def serve(url_file: Path) -> None:
    """Serve on a free port of loopback, whose address is written to `url_file`."""
    app = Starlette(
        routes=[Route("/empty", empty, methods=["POST"]), Route("/spawn", spawn, methods=["POST"])]
    )
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    sock.listen(4096)
    partial = url_file.with_suffix(".new")
    partial.write_text(f"http://127.0.0.1:{sock.getsockname()[1]}")
    partial.rename(url_file)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, loop="uvloop", http="httptools", backlog=4096
    )
    uvicorn.Server(config).run(sockets=[sock])


def start_bare_server(scratch: Scratch, name: str = "bare") -> tuple[str, subprocess.Popen[bytes]]:
    """Start it; returns its address and process."""
    url_file = scratch.folder / f"{name}.url"
    process = scratch.start(
        [sys.executable, "-m", "bench.limits.bare_server", str(url_file)], name, cwd=ROOT
    )
    wait_until(url_file.exists, "the bare server", 20)
    return url_file.read_text(), process


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
