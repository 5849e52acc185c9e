"""What tests wait for and look at: a condition that comes true, a process that lives, a free port."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.process import table


def crowding() -> float:
    """Return how many times longer than alone things take on this machine now: how much wants to
    run for each core, at least 1."""
    words = Path("/proc/loadavg").read_text().split()
    running = int(words[3].split("/")[0])
    return max(1.0, max(float(words[0]), running) / (os.cpu_count() or 1))


def wait_until(condition: Callable[[], Any], seconds: float = 20.0, *, what: str = "") -> Any:
    """Poll until `condition` returns something true and return it; fail the test after so many
    seconds of a machine that does nothing else, saying what was awaited."""
    began, pause = time.monotonic(), 0.01
    while not (found := condition()):
        if time.monotonic() - began > seconds * crowding():
            raise AssertionError(f"waited {seconds:g} s in vain for {what or condition}")
        time.sleep(pause)
        pause = min(pause * 1.2, 0.1)  # often a call of a server, which shares the machine's cores
    return found


def is_alive(pid: int) -> bool:
    """True while a process with this pid lives (a zombie does not)."""
    entry = table.read_entry(pid)
    return entry is not None and entry.alive


def free_port() -> int:
    """A port of loopback that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
