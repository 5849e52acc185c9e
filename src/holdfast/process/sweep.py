"""End what an earlier guardian of the same host left behind.

Called by a new guardian before it starts anything, and by an agent whose guardian died: first processes are
already dead by then (parent-death signal); this finds their descendants, by the host's environment mark, by
the control groups, and by parentage.

SWEEP-1  Afterwards no process of the host's earlier incarnation runs, save those reported as survivors.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection

from holdfast.process import table as process_table
from holdfast.process.groups import list_groups
from holdfast.process.table import ProcessEntry
from holdfast.process.tree import KILL_POLL_SECONDS, Signaller

# One scan can miss a child that was forked while it was made and whose parent died meanwhile.
_EMPTY_SCANS = 3


def sweep(
    host: str,
    *,
    group_homes: Collection[str] = (),
    kill_limit_seconds: float = 10.0,
    signaller: Signaller | None = None,
) -> list[int]:
    """Kill every process that carries `host` in its environment, or is in a group under `group_homes`, or
    descends from one.

    The caller and its ancestors are spared. Waits until all are gone, `kill_limit_seconds` at most, and
    removes the emptied groups. Returns the pids that survived SIGKILL, normally none.
    """
    signaller = signaller or Signaller()
    spared = process_table.read_ancestors(os.getpid())
    unmarked: set[tuple[int, int]] = set()
    seen: set[tuple[int, int]] = set()
    give_up_at = time.monotonic() + kill_limit_seconds
    folders = [home.rsplit("/", 1)[1] for home in group_homes]
    empty_scans = 0
    while True:
        for home in group_homes:
            for group in list_groups(home):
                signaller.kill_group(group)
        members = _find_leftovers(host, folders, spared, unmarked, seen)
        empty_scans = 0 if members else empty_scans + 1
        if empty_scans == _EMPTY_SCANS or time.monotonic() >= give_up_at:
            break
        for entry in members:
            signaller.send(entry, signal.SIGKILL)
        time.sleep(KILL_POLL_SECONDS)
    for home in group_homes:
        for group in list_groups(home):
            group.remove()
        with contextlib.suppress(OSError):
            os.rmdir(home)  # not empty: a survivor is in it; gone: nothing to do
    return sorted(entry.pid for entry in members)


def _find_leftovers(
    host: str,
    folders: Collection[str],
    spared: set[int],
    unmarked: set[tuple[int, int]],
    seen: set[tuple[int, int]],
) -> list[ProcessEntry]:
    """Scan once. `unmarked` and `seen` carry over what earlier scans learned."""
    table = process_table.read_table()
    found: set[int] = set()
    for entry in table.values():
        if entry.identity in seen:
            found.add(entry.pid)
        elif entry.identity not in unmarked:
            in_group = any(process_table.read_group(entry.pid, folder) for folder in folders)
            if in_group or process_table.read_marks(entry.pid)[1] == host:
                found.add(entry.pid)
            else:
                unmarked.add(entry.identity)
    found -= spared
    grew = True
    while grew:
        below = {entry.pid for entry in table.values() if entry.ppid in found} - found - spared
        grew = bool(below)
        found |= below
    members = [table[pid] for pid in found if pid in table]
    seen.update(entry.identity for entry in members)
    return [entry for entry in members if entry.alive]
