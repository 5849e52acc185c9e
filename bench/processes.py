"""What processes cost, read from /proc, and how the ones we started are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def list_family(pid: int) -> list[int]:
    """`pid` and every living descendant of it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _parent_of(int(entry.name))
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    family, waiting = [], [pid]
    while waiting:
        member = waiting.pop()
        if os.path.exists(f"/proc/{member}"):
            family.append(member)
        waiting += children.get(member, [])
    return family


def _stat_fields(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _parent_of(pid: int) -> int | None:
    fields = _stat_fields(pid)
    return int(fields[1]) if fields else None


def read_cpu_seconds(pid: int) -> float:
    """User and system time of the process, its threads and its reaped children; 0 when it is
    gone."""
    fields = _stat_fields(pid)
    return sum(int(fields[n]) for n in (11, 12, 13, 14)) / TICKS_PER_SECOND if fields else 0.0


def sum_cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of several processes."""
    return sum(read_cpu_seconds(pid) for pid in pids)


def read_command(pid: int) -> str:
    """The command line, "" when it is gone."""
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except (FileNotFoundError, ProcessLookupError):
        return ""


def read_memory_mb(pid: int) -> tuple[float, float]:
    """(resident, proportional) megabytes of 10^6 bytes. Proportional shares what several processes
    map."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0.0, 0.0
    found = {
        line.split(":")[0]: int(line.split()[1])
        for line in lines
        if line.startswith(("Rss", "Pss:"))
    }
    return found.get("Rss", 0) * 1024 / 1e6, found.get("Pss", 0) * 1024 / 1e6


def end_process(
    process: subprocess.Popen[bytes], first: signal.Signals, patience_seconds: float
) -> None:
    """Ask the process to end, and when it does not, kill it and everything it started. Only ever by
    its own pid."""
    if process.poll() is None:
        process.send_signal(first)
        try:
            process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            family = list_family(process.pid)
            process.kill()
            for pid in family[1:]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it went with its parent
            process.wait(10)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def wait_gone(pids: Iterable[int], timeout_seconds: float) -> list[int]:
    """Wait until none of `pids` lives (zombies do not count); return those that still do."""
    until = time.monotonic() + timeout_seconds
    while True:
        left = [
            pid for pid in pids if (fields := _stat_fields(pid)) is not None and fields[0] != "Z"
        ]
        if not left or time.monotonic() >= until:
            return left
        time.sleep(0.02)
