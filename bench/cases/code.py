"""A folder that goes with a job, against `tar` through a socket onto the same disk."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figures import Figures, Line, spread
from bench.scale import Scale, alternate
from bench.system import QUEUE, Place, Scratch, clean_environment, holdfast_command, start_up

name = "code"
budget = (
    "first upload <= 2 x tar through a socket; one byte changed <= 0.5 s and <= 1 MB; unchanged <= 0.2 s over "
    "`holdfast version`"
)
_CHANGED_SECONDS, _CHANGED_BYTES, _UNCHANGED_SECONDS = 0.5, 1e6, 0.2


class Relay:
    """A port that passes bytes on to a controller, and counts those that go there."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            for pair in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        try:
            while data := source.recv(1 << 18):
                self.sent += len(data) if counts else 0
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()


class Folder:
    """A folder of files, made anew with other bytes for each round."""

    def __init__(self, path: Path, files: int, size: int) -> None:
        self.path, self.files, self.size = path, files, size
        self._seed = 0

    def fill(self) -> None:
        """Write all files with new bytes."""
        self._seed += 1
        chance = random.Random(self._seed)
        shutil.rmtree(self.path, ignore_errors=True)
        for number in range(self.files):
            path = self.path / f"part{number // 100:03}" / f"module_{number:05}.py"
            if number % 100 == 0:
                path.parent.mkdir(parents=True)
            path.write_bytes(chance.randbytes(self.size))
        for path in (self.path, *self.path.rglob("*")):  # older than what the index trusts
            os.utime(path, (1_700_000_000, 1_700_000_000))

    def touch_one(self) -> None:
        """Change one byte of one file."""
        path = self.path / "part000" / "module_00000.py"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def run(scale: Scale) -> Figures:
    """Seconds of commands, from their start to their exit."""
    files, size = scale.pick(10_000, 20), scale.pick(20_000, 200)
    with Scratch() as scratch:
        place = start_up(scratch, slots=1)
        place.make_queue()
        place.pause()  # a job that ran would lay the folder meanwhile
        folder = Folder(scratch.folder / "work", files, size)
        with relaying(place) as relay:
            environ = {**place.environ(), "XDG_CACHE_HOME": str(scratch.folder / "cache")}
            environ["HOLDFAST_URL"] = relay.url
            return _measure(scale, scratch, folder, relay, environ)


@contextmanager
def relaying(place: Place) -> Iterator[Relay]:
    """Yield a relay before a controller."""
    relay = Relay(place.url)
    try:
        yield relay
    finally:
        relay.close()


def _measure(
    scale: Scale, scratch: Scratch, folder: Folder, relay: Relay, environ: dict[str, str]
) -> Figures:
    target = scratch.folder / "copy"

    def limit() -> float:
        folder.fill()
        return _copy_by_tar(folder.path, target)

    sent = list[int]()

    def first() -> float:
        before = relay.sent
        took = _submit(folder.path, environ)
        sent.append(relay.sent - before)
        return took

    rounds = scale.pick(3, 1)
    limits, firsts = alternate(rounds, limit, first, ("tar", "--workdir"), "s")
    if not scale.quick:
        time.sleep(2.5)  # so that the index trusts what it saw
    _submit(folder.path, environ)
    bare, still = alternate(
        scale.rounds, lambda: _time(["version"], environ), lambda: _submit(folder.path, environ),
        ("version", "unchanged"), "s",
    )  # fmt: skip
    changed, bytes_ = list[float](), list[int]()
    for _ in range(scale.rounds):
        folder.touch_one()
        before = relay.sent
        changed.append(_submit(folder.path, environ))
        bytes_.append(relay.sent - before)
    over = [a - b for a, b in zip(still, bare, strict=True)]
    lines = (
        _line("first upload, to submitted", "s", firsts, "tar | socket | tar x", limits, "<= 2 x"),
        _against("unchanged, over `holdfast version`", "s", over, _UNCHANGED_SECONDS),
        _against("one byte changed, to submitted", "s", changed, _CHANGED_SECONDS),
        _against("one byte changed, bytes sent", "bytes", bytes_, _CHANGED_BYTES),
    )
    note = (
        f"{folder.files} files of {folder.size} bytes, random; `holdfast submit --workdir` through a "
        f"relay that counts; {max(sent):,} bytes went at the first upload. The controller syncs each "
        "pack to its disk, tar syncs nothing."
    )
    return Figures(name=name, lines=lines, notes=(note,))


def _line(
    what: str, unit: str, value: list[float], limit_name: str, limit: list[float], words: str
) -> Line:
    found, beside = spread(value), spread(limit)
    return Line(
        what=what, unit=unit, value=found, limit_name=limit_name, limit=beside, budget=words,
        met=found.median <= 2 * beside.median,
    )  # fmt: skip


def _against(what: str, unit: str, value: list[float] | list[int], most: float) -> Line:
    found = spread(value)
    return Line(
        what=what, unit=unit, value=found, limit_name="promised", limit=spread([most]),
        budget=f"<= {most:g}", met=found.median <= most,
    )  # fmt: skip


def _submit(folder: Path, environ: dict[str, str]) -> float:
    return _time(["submit", "--queue", QUEUE, "--workdir", str(folder), "--", "true"], environ)


def _time(words: list[str], environ: dict[str, str]) -> float:
    began = time.monotonic()
    done = subprocess.run([*holdfast_command(), *words], env=environ, capture_output=True)
    took = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr[-500:]!r}")
    return took


def _copy_by_tar(folder: Path, target: Path) -> float:
    """Seconds of `tar c`, a connection over loopback, and `tar x`."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    near, far = _connect()
    with near, far:
        began = time.monotonic()
        take = subprocess.Popen(
            ["tar", "x", "-C", target],
            stdin=far,
            stdout=subprocess.DEVNULL,
            env=clean_environment(),
        )
        far.close()
        subprocess.run(["tar", "c", "-C", folder, "."], stdout=near, check=True)
        near.shutdown(socket.SHUT_WR)
        if take.wait():
            raise RuntimeError("tar x failed")
        return time.monotonic() - began


def _connect() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far
