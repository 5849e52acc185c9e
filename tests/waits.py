"""What tests wait for and look at: a condition that comes true, a process that lives, a free port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from holdfast.process import table

T = TypeVar("T")
_TURN_SECONDS = 1.0


def crowding() -> float:
    """Return how many times longer than alone things take on this machine now: how much wants to
    run for each core, at least 1."""
    words = Path("/proc/loadavg").read_text().split()
    running = int(words[3].split("/")[0])
    return max(1.0, max(float(words[0]), running) / (os.cpu_count() or 1))


def stretch(seconds: float) -> float:
    """Return how long what takes so many seconds alone takes now: for the limits that a test gives
    to what it tests."""
    return seconds * crowding()


class Patience:
    """So many seconds of a machine that does nothing else, from now on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()

    @property
    def over(self) -> bool:
        """True once they have passed."""
        waited = time.monotonic() - self._began
        return waited > self._seconds and waited > self._seconds * crowding()


def wait_until(condition: Callable[[], Any], seconds: float = 20.0, *, what: str = "") -> Any:
    """Poll until `condition` returns something true and return it; fail the test when the patience
    for it is over, saying what was awaited."""
    patience, pause = Patience(seconds), 0.01
    while not (found := condition()):
        assert not patience.over, f"waited {seconds:g} s in vain for {what or condition}"
        time.sleep(pause)
        pause = min(
            pause * 1.25, 0.25
        )  # often a call of a server, which shares the machine's cores
    return found


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError once the patience for what is done inside is over."""
    patience, loop = Patience(seconds), asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:

        def look() -> None:
            nonlocal timer
            if patience.over:
                limit.reschedule(loop.time())
            else:
                timer = loop.call_later(0.25, look)

        timer = loop.call_later(seconds, look)
        try:
            yield
        finally:
            timer.cancel()


async def in_time(awaitable: Awaitable[T], seconds: float) -> T:
    """Await it `within` these seconds."""
    async with within(seconds):
        return await awaitable


class Started(Protocol):
    """A process that was started: `subprocess.Popen`, or one that was forked for us."""

    pid: int

    def poll(self) -> int | None:
        """Return its exit status, None while it runs."""


def wait_exit(process: Started, seconds: float = 20.0) -> int:
    """Wait for the process's end and return its exit status."""
    wait_until(lambda: process.poll() is not None, seconds, what=f"process {process.pid} to end")
    status = process.poll()
    assert status is not None
    return status


def run_patiently(
    words: Sequence[str],
    *,
    seconds: float,
    check: bool = False,
    capture_output: bool = False,
    input: str | bytes | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Be `subprocess.run`, for a program that has so many seconds of a machine that does nothing
    else. Raises `subprocess.TimeoutExpired`, and ends it, when they are over."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    patience = Patience(seconds)
    with tempfile.TemporaryFile() as file:
        if input is not None:  # in a file: a second `communicate` writes nothing more of it
            file.write(input.encode() if isinstance(input, str) else input)
            file.seek(0)
            options["stdin"] = file
        with subprocess.Popen(words, **options) as process:
            while True:
                try:
                    output, errors = process.communicate(timeout=_TURN_SECONDS)
                    break
                except BaseException as error:
                    if not isinstance(error, subprocess.TimeoutExpired) or patience.over:
                        process.kill()
                        raise
    done = subprocess.CompletedProcess(words, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def is_alive(pid: int) -> bool:
    """True while a process with this pid lives (a zombie does not)."""
    entry = table.read_entry(pid)
    return entry is not None and entry.alive


def free_port() -> int:
    """A port of loopback that is free now, and stays so between two starts of a server: the kernel
    gives it to no connection."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    first = int(given.split()[0])
    while True:
        port = random.SystemRandom().randrange(first // 2, first)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
