"""Finds the processes of a tree that only read the output of others of it: the `tee` of `train.py |
tee log`.

PIPE-1  A reader that a signal would simply end gets its TERM after the processes that write to it,
        because the last output of a program that saves its work, and the save itself where a print
        fails, are lost with the process that reads them. The end of its input ends the reader.
"""

import os
from collections.abc import Collection

from holdfast.process.table import read_signals


def find_readers(pids: Collection[int]) -> set[int]:
    """Return the processes that read from a pipe into which another one writes, directly or through
    others, and that have no handler for TERM."""
    pids = list(pids)
    if len(pids) < 2:
        return set()
    reads = {pid: _find_pipe(pid, 0) for pid in pids}
    writes = {pid: {_find_pipe(pid, 1), _find_pipe(pid, 2)} - {""} for pid in pids}
    fed = {
        pid
        for pid, pipe in reads.items()
        if pipe and any(pipe in out and pipe not in writes[pid] for out in writes.values())
    }
    reached, edge = set(pids) - fed, set(pids) - fed
    while edge:  # two that read from each other follow none
        pipes = set().union(*(writes[pid] for pid in edge))
        edge = {pid for pid in fed - reached if reads[pid] in pipes}
        reached |= edge
    return {pid for pid in fed & reached if not catches_term(pid)}


def catches_term(pid: int) -> bool:
    """Return whether a process has a handler for TERM."""
    return read_signals(pid).catches_term


def _find_pipe(pid: int, fd: int) -> str:
    try:
        found = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""
    return found if found.startswith("pipe:") else ""
