"""The cost of processes, read from /proc; how the benchmarks start and end their own."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
SPARE_DESCRIPTORS = 300


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


def read_state(pid: int) -> str:
    """The letter of the state of a process, as R for one that runs or would; Z when it is gone."""
    fields = _stat_fields(pid)
    return fields[0] if fields else "Z"


def read_cpu_seconds(pid: int) -> float:
    """User and system time of the process, its threads and its reaped children; 0 when it is
    gone."""
    return sum(read_own_and_reaped_ticks(pid)) / TICKS_PER_SECOND


def read_own_and_reaped_ticks(pid: int) -> tuple[int, int]:
    """User and system time of the process with its threads, and of its reaped children, in ticks of
    TICKS_PER_SECOND; 0 when it is gone."""
    fields = _stat_fields(pid)
    if fields is None:
        return 0, 0
    own, own_system, reaped, reaped_system = (int(fields[n]) for n in (11, 12, 13, 14))
    return own + own_system, reaped + reaped_system


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
            _kill(family[1:])
            process.wait(10)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it went with its parent
            os.kill(pid, signal.SIGKILL)


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


def need_descriptors(count: int) -> None:
    """Allow this process and its children `count` connections and some files more. Raises OSError
    where the hard limit forbids it: a fleet is measured whole or not at all."""
    needed = count + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise OSError(
            f"{count} hosts need as many descriptors; the hard limit here is {hard} (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def run_module(module: str, *arguments: object, patience_seconds: float) -> dict[str, Any]:
    """Run a module of the benchmarks in a process of its own and return what it prints, a JSON
    object. Where this is cut short, all that the module started ends with it. Raises RuntimeError
    with the end of its stderr where it fails."""
    command = [sys.executable, "-m", f"bench.{module}", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=patience_seconds)
    except BaseException:
        family = list_family(process.pid)
        end_process(process, signal.SIGTERM, 10)
        _kill(family[1:])
        raise
    if process.returncode:
        words = err.decode(errors="replace")[-1500:]
        raise RuntimeError(f"bench.{module} {arguments} failed: {words}")
    found: dict[str, Any] = json.loads(out)
    return found
