"""Counts of a host's calls of its kernel in the lines of strace: forks, waits for a disk, files made."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

_CALLS = "clone,clone3,fork,vfork,fsync,fdatasync,syncfs,open,openat,creat,mkdir,mkdirat,mknodat"
_LINE = re.compile(rb"^\d+ +(\w+)\((.*)$", re.MULTILINE)
_FAILED = re.compile(rb"= -1 E")


def trace(words: Sequence[str], output: Path) -> list[str]:
    """Return the words that run a program, and whatever it starts, under strace, which writes into
    `output`; the program's own words where there is no strace."""
    program = shutil.which("strace")
    if program is None:
        return list(words)
    options = ["-D", "-f", "-qq", "--seccomp-bpf", "-e", f"trace={_CALLS}", "-e", "signal=none"]
    return [program, *options, "-o", str(output), *words]


def count_calls(trace: bytes) -> dict[str, float]:
    """Return how many processes were forked, how often the host waited for a disk, and how many
    files and folders were made or may have been."""
    forks = waits = files = 0
    for call, rest in _LINE.findall(trace):
        if _FAILED.search(rest):
            continue
        if call in (b"clone", b"clone3", b"fork", b"vfork"):
            forks += b"CLONE_THREAD" not in rest
        elif call in (b"fsync", b"fdatasync", b"syncfs"):
            waits += 1
        elif call in (b"open", b"openat"):
            files += b"O_CREAT" in rest
        else:
            files += 1
    return {"forks": float(forks), "fsyncs": float(waits), "files": float(files)}
