"""The facts of a machine, and how much of it is in use."""

import contextlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from holdfast.process import table
from holdfast.wire.bus.messages import MachineFacts, ProcessUse

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def read_facts(
    url: str,
    name: str | None,
    labels: Mapping[str, str],
    gpus: int | None,
    address: str | None = None,
) -> MachineFacts:
    """Read this machine's facts. Device files are counted, so that no GPU library is loaded."""
    return MachineFacts(
        hostname=name or read_machine_name(),
        address=address or find_address(url),
        cpus=len(os.sched_getaffinity(0)),
        gpus=_count_gpus() if gpus is None else gpus,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES,
        labels=dict(labels),
    )


def read_machine_name() -> str:
    """Return Slurm's name of the node, if Slurm started this process, so that the script, `squeue`
    and `scontrol` use one name; else the host name.
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
    """Return this machine's address on the way to `url` (empty: to the outside), IPv4 first."""
    # Addresses reserved for documentation (RFC 5737, RFC 3849) are never this machine's own.
    for target in [url] if url else ["tcp://192.0.2.1:9", "tcp://[2001:db8::1]:9"]:
        for family, where in _resolve(target):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(where)  # sends nothing
                address: str = probe.getsockname()[0]
                return address
    return "127.0.0.1"


def needs_ipv6(url: str) -> bool:
    """Return True where `url` names an IPv6 address, or a machine that has no other."""
    families = [family for family, _ in _resolve(url)]
    return bool(families) and socket.AF_INET not in families


def _resolve(url: str) -> list[tuple[int, Any]]:
    """Return the (family, address) pairs of a name, IPv4 first; an empty list where the name is not
    known (yet)."""
    try:
        parts = urlsplit(url)
        found = socket.getaddrinfo(parts.hostname, parts.port or 9, type=socket.SOCK_DGRAM)
    except (OSError, ValueError):
        return []
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return [(entry[0], entry[4]) for entry in found]


def read_usage(processes: Sequence[tuple[int, int, int]]) -> tuple[float, int, list[ProcessUse]]:
    """Return (load over 1 min, free bytes, use of each tree). `processes`: (group, rank, pid)."""
    try:
        trees = _read_trees(processes) if processes else []
    except OSError:
        trees = []  # out of descriptors: the next sample may have them
    return os.getloadavg()[0], _read_free_bytes(), trees


def read_waited_seconds() -> float:
    """Return for how long the threads of this process, together, were ready to run and had no core,
    in seconds; 0 where the kernel does not count it."""
    waited = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/schedstat", encoding="ascii") as file:
                waited += int(file.read().split()[1])
    return waited / 1e9


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
