"""A context with local managers, and what tests look at: processes by /proc, nothing by time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.process import table
from holdfast.supervisor import Context, Host, Process
from tests.system.forks import find_origin
from tests.waits import is_alive, wait_until

PATIENCE = 40.0  # for anything that must happen on a loaded machine
ECHO = """
import sys
from holdfast.supervisor import get_message_queue
queue = get_message_queue()
queue.send("ready")
while (message := queue.recv()) != "stop":
    queue.send(message)
"""
# Leaves behind: a child, a grandchild in a session of its own, and one with no environment whose
# parents are dead.
FAMILY = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "6000"])
subprocess.Popen(["sh", "-c", "trap '' TERM HUP; while :; do sleep 0.05; done"], start_new_session=True)
middle = os.fork()
if middle == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "6000"], {})
    os._exit(0)
os.waitpid(middle, 0)
open(sys.argv[1], "w").write("ready")
time.sleep(6000)
"""


class Managers:
    """Host managers started by hand, as a scheduler would: known by pid, their exit codes looked
    at."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen[bytes]] = []

    def start(
        self, ctx: Context, *more: str, name: str = "", url: str | None = None
    ) -> subprocess.Popen[bytes]:
        """Fork one, with all that a started one has of its own."""
        words = [*ctx.manager_command(url)[3:], "--usage-interval", "0", *more]
        words += ["--name", name] if name else []
        with open(os.devnull, "wb") as nothing:
            process = find_origin("cli").start(words, dict(os.environ), nothing.fileno())
        self.running.append(process)
        return process

    def start_command(
        self, command: list[str], env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=env)
        self.running.append(process)
        return process

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


def local_context(**more: Any) -> Context:
    """On loopback, quiet."""
    return Context(**{"bind": "127.0.0.1", "log_interval": None, **more})


def attach(
    ctx: Context, managers: Managers, count: int
) -> tuple[list[Host], list[subprocess.Popen[bytes]]]:
    """So many attached hosts and, in the same order, their managers."""
    hosts, started = [], []
    for number in range(count):
        started.append(managers.start(ctx, name=f"m{number}"))
        hosts += ctx.request_hosts(1)
        assert hosts[-1].hostname().result(PATIENCE) == f"m{number}"
    return hosts, started


def python(code: str, *args: str) -> list[str]:
    return [sys.executable, "-c", code, *args]


def find_descendants(pid: int) -> list[int]:
    """Everything below `pid` now."""
    found = table.read_table()
    below, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        children = [entry.pid for entry in found.values() if entry.ppid == parent and entry.alive]
        below += children
        waiting += children
    return below


def wait_gone(pids: list[int], what: str) -> None:
    """Every one of them must die. Start times are not compared: within a test no number comes
    back."""
    wait_until(lambda: not any(is_alive(pid) for pid in pids), PATIENCE, what=what)


def start_family(ctx: Context, host: Host, folder: Path) -> tuple[Process, list[int]]:
    """A process with runaway descendants; it and the pids of all of them."""
    ready = folder / f"ready-{host.number}"
    (process,) = ctx.create_process_group([host], python(FAMILY, str(ready)))
    first = process.pid().result(PATIENCE)
    wait_until(ready.exists, PATIENCE, what="the family")
    warden = table.read_entry(first)
    assert warden is not None
    # The one without parents has become the warden's child, so look below the warden.
    pids = wait_until(
        lambda: len(found := find_descendants(warden.ppid)) >= 5 and found,
        PATIENCE,
        what="every manager",
    )
    return process, pids


def is_gone(path: str) -> Callable[[], bool]:
    return lambda: not os.path.exists(path)


def each(iterator: Iterator[Any]) -> list[Any]:
    return list(iterator)


def find_warden(manager: subprocess.Popen[bytes]) -> int:
    """The pid of a manager's warden, its only child."""
    (warden,) = [entry.pid for entry in table.read_table().values() if entry.ppid == manager.pid]
    return warden
