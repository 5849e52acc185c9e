"""Servers, proxies and certificates for the tests of this room, and both of its clients in one
shape."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.client import AsyncClient, Client
from holdfast.http.addresses import HttpAddress
from holdfast.http.asynchronous import AsyncHttp
from holdfast.http.blocking import BlockingHttp
from holdfast.http.courier import HttpAnswer, HttpRequest

Turn = Callable[[socket.socket], None]
NAME = "controller.invalid"


def read_job(kind: type[Client] | type[AsyncClient], job_id: str, url: str, **given: Any) -> str:
    """Ask one of the SDK's clients for a job; its id."""
    if kind is Client:
        with Client(url, "t", retry_seconds=0.0, **given) as client:
            return client.job(job_id).id

    async def ask() -> str:
        async with AsyncClient(url, "t", retry_seconds=0.0, **given) as client:
            return (await client.job(job_id)).id

    return asyncio.run(ask())


class Asker:
    """A client of this room, blocking or not, without its shape."""

    def __init__(self, kind: str, addresses: tuple[HttpAddress, ...]) -> None:
        self._loop = asyncio.new_event_loop()
        self._http = BlockingHttp(addresses) if kind == "blocking" else AsyncHttp(addresses)

    def ask(self, *, repeatable: bool = True, seconds: float = 10.0) -> HttpAnswer:
        request = HttpRequest("POST", "/x", seconds, body=b"b", repeatable=repeatable)
        if isinstance(self._http, BlockingHttp):
            return self._http.call(request)
        return self._loop.run_until_complete(self._http.call(request))

    def close(self) -> None:
        self._http.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


@dataclass
class Server:
    """A server of raw turns, one for each connection; the last one repeats. taken: how many
    connections came."""

    turns: list[Turn]
    port: int = 0
    taken: int = 0
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self) -> None:
        while True:
            try:
                wire, _ = self.listener.accept()
            except OSError:
                return
            turn = self.turns[min(self.taken, len(self.turns) - 1)]
            self.taken += 1
            threading.Thread(target=self._talk, args=(turn, wire), daemon=True).start()

    def _talk(self, turn: Turn, wire: socket.socket) -> None:
        with wire, contextlib.suppress(OSError):
            turn(wire)

    def stop(self) -> None:
        """Refuse connections from now on."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@contextmanager
def serving(*turns: Turn) -> Iterator[Server]:
    """Serve on loopback."""
    server = Server(list(turns))
    server.port = server.listener.getsockname()[1]
    threading.Thread(target=server.run, daemon=True).start()
    try:
        yield server
    finally:
        server.stop()


def say(body: bytes, status: bytes = b"200 OK") -> Turn:
    """Make a turn that answers once."""
    head = b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"

    def turn(wire: socket.socket) -> None:
        wire.recv(65536)
        wire.sendall(head % (status, len(body)) + body)

    return turn


def lose(wire: socket.socket) -> None:
    """Take a request, and hang up."""
    wire.recv(65536)


def be_silent(wire: socket.socket) -> None:
    """Take what comes, and answer nothing."""
    while wire.recv(65536):
        pass


@dataclass
class ConnectProxy:
    """A proxy that connects every name with one port of loopback. asked: the heads that came."""

    target: int
    needs: bytes = b""
    asked: list[bytes] = field(default_factory=list)

    def turn(self, wire: socket.socket) -> None:
        """Serve one connection."""
        head = b""
        while b"\r\n\r\n" not in head:
            head += wire.recv(65536)
        self.asked.append(head)
        if self.needs not in head:
            wire.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", self.target)) as far:
            wire.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pump, args=(far, wire), daemon=True)
            back.start()
            _pump(wire, far)
            back.join(10)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def make_chain(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context for `NAME` and 127.0.0.1, whose certificate an authority below the root
    signed, and the root's file."""

    def run(*words: str | Path) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=folder)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    (folder / "ca.ext").write_text("basicConstraints=critical,CA:true\nkeyUsage=keyCertSign\n")
    (folder / "leaf.ext").write_text(f"subjectAltName=DNS:{NAME},IP:127.0.0.1\n")
    run("req", "-x509", *new, "-days", "2", "-keyout", "root.key", "-out", "root.pem",
        "-subj", "/CN=Test root")  # fmt: skip
    for name, signer, kind in (("middle", "root", "ca"), ("leaf", "middle", "leaf")):
        run("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        run("x509", "-req", "-in", f"{name}.csr", "-CA", f"{signer}.pem", "-CAkey", f"{signer}.key",
            "-CAcreateserial", "-days", "2", "-extfile", f"{kind}.ext", "-out", f"{name}.pem")  # fmt: skip
    chain = folder / "chain.pem"
    chain.write_text((folder / "leaf.pem").read_text() + (folder / "middle.pem").read_text())
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain, folder / "leaf.key")
    return server, folder / "root.pem"
