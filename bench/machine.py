"""The machine's own limits, measured before the benchmarks: a figure is compared on the same
machine, or not at all."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

from bench.costs import Meter
from bench.limits.fork_exec import measure_fork_exec

_FORKS, _SYNCS, _COPIES = 500, 200, 5
_COPY_BYTES = 64 << 20  # far beyond the caches of a core


def measure_machine(*, quick: bool = False) -> dict[str, str]:
    """Return what the machine is, and how fast: name → words. Takes about two seconds."""
    forks, syncs = (20, 5) if quick else (_FORKS, _SYNCS)
    load = os.getloadavg()[0]
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "clock": _read_clock(),
        "fork-exec": f"{measure_fork_exec(forks, Meter({})):,.0f}/s",
        "fsync of the scratch folder": f"{_measure_syncs(syncs):,.0f}/s",
        "memory copy": f"{_measure_copy():.1f} GB/s",
        "load before": f"{load:.1f}",
        "scratch": _name_file_system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _read_clock() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    clocks = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return f"{max(clocks):.0f} MHz" if clocks else "unknown"


def _measure_syncs(count: int) -> float:
    """Appends of 100 bytes, each with its fsync, in a second."""
    with tempfile.NamedTemporaryFile(prefix="holdfast-bench-") as file:
        began = time.perf_counter()
        for _ in range(count):
            os.write(file.fileno(), b"x" * 100)
            os.fsync(file.fileno())
        return count / (time.perf_counter() - began)


def _measure_copy() -> float:
    """Gigabytes that one core copies in a second, the best of some."""
    source, best = bytes(_COPY_BYTES), 0.0
    target = bytearray(_COPY_BYTES)
    for _ in range(_COPIES):
        began = time.perf_counter()
        target[:] = source
        best = max(best, _COPY_BYTES / 1e9 / (time.perf_counter() - began))
    return best


def _name_file_system() -> str:
    """The kind of file system under the scratch folder, and its free room."""
    folder = Path(tempfile.gettempdir()).resolve()
    kind, longest = "unknown", -1
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, name, *_ = line.split()
        if folder.is_relative_to(place) and len(place) > longest:
            kind, longest = name, len(place)
    return f"{kind}, {shutil.disk_usage(folder).free / 1e9:.0f} GB free"
