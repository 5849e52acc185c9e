"""What tests wait for and look at: a condition that comes true, a process that lives, a free port."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from holdfast.process import table


def wait_until(condition: Callable[[], Any], seconds: float = 20.0, *, what: str = "") -> Any:
    """Poll until `condition` returns something true and return it; after so many seconds fail the
    test, saying what was awaited."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what or condition}")
        time.sleep(0.01)
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
