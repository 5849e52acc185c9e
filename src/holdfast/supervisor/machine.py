"""What a machine has, and how much of it is in use."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from holdfast.process import table
from holdfast.wire.bus import HostFacts, ProcessUse

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def read_facts(url: str, name: str | None, labels: Mapping[str, str], gpus: int | None) -> HostFacts:
    """What this machine tells of itself. No GPU library is loaded: device files are counted."""
    return HostFacts(
        hostname=name or read_machine_name(),
        address=find_address(url),
        cpus=len(os.sched_getaffinity(0)),
        gpus=_count_gpus() if gpus is None else gpus,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES,
        labels=dict(labels),
    )


def read_machine_name() -> str:
    """What this machine is called: by Slurm where Slurm started this process, so that the script, `squeue` and `scontrol`
    speak of the same node; else by itself.
    """
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _count_gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", os.environ.get("ROCR_VISIBLE_DEVICES"))
    if visible is not None:
        return len([word for word in visible.split(",") if word.strip() and word.strip() != "-1"])
    try:
        names = os.listdir("/dev")
    except OSError:
        return 0
    return sum(1 for word in names if re.fullmatch(r"nvidia\d+", word))


def find_address(url: str) -> str:
    """This machine's address on the way to `url`, or to the outside where `url` is empty."""
    parts = urlsplit(url)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname or "192.0.2.1", parts.port or 9))  # sends nothing
            address: str = probe.getsockname()[0]
            return address
    except OSError:
        return "127.0.0.1"


def read_usage(processes: Sequence[tuple[int, int, int]]) -> tuple[float, int, list[ProcessUse]]:
    """(load over one minute, free bytes, use of each tree). `processes` are (group, rank, pid)."""
    return os.getloadavg()[0], _read_free_bytes(), _read_trees(processes) if processes else []


def _read_free_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0


def _read_trees(processes: Sequence[tuple[int, int, int]]) -> list[ProcessUse]:
    found = table.read_table()
    children: dict[int, list[int]] = {}
    for entry in found.values():
        children.setdefault(entry.ppid, []).append(entry.pid)
    uses = []
    for group, rank, pid in processes:
        cpu, rss, count, waiting = 0.0, 0, 0, [pid]
        while waiting:
            member = waiting.pop()
            one_cpu, one_rss = _read_one(member)
            cpu, rss, count = cpu + one_cpu, rss + one_rss, count + 1
            waiting += children.get(member, [])
        uses.append(ProcessUse(group, rank, cpu, rss, count))
    return uses


def _read_one(pid: int) -> tuple[float, int]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0, 0
    return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE_BYTES
