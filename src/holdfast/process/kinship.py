"""Whose a process is by those above it: pure questions to a table that was read."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.process.table import ProcessEntry


def inherit_owner(table: Mapping[int, ProcessEntry], owner: dict[int, str]) -> None:
    """Give every process without an owner that of its nearest ancestor that has one."""
    orphans: set[int] = set()
    for pid in list(table):
        path = []
        while pid in table and pid not in owner and pid not in orphans:
            path.append(pid)
            pid = table[pid].ppid
            if pid in path:
                break  # read while pids changed hands
        found = owner.get(pid)
        if found is None:
            orphans.update(path)
        else:
            owner.update((step, found) for step in path)


def may_be_below(entry: ProcessEntry, table: Mapping[int, ProcessEntry]) -> bool:
    """Whether a process may descend from one that is not in the table (us): False when all its
    ancestors are in it."""
    steps = 0
    pid = entry.ppid
    while pid in table and steps < len(table):
        pid = table[pid].ppid
        steps += 1
    return pid != 0
