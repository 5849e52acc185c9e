"""End the processes that an earlier guardian of the same host left behind.

Called by a new guardian before it starts anything, and by an agent whose guardian died. First
processes are already dead by then (parent-death signal); the sweep finds their descendants by the
host's environment mark and brand, by the control groups, and by parentage.

SWEEP-1  Afterwards no process of the host's earlier incarnation runs, save those reported as
         survivors. Where the process table cannot be read to the end (TABLE-1) that is unknown, and
         the sweep fails.
SWEEP-2  Only a folder with the host's own name is accepted as the home of its groups: its path was
         read from a file, and a path that broke off names a folder above, which holds other groups.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection

from holdfast.process import table as process_table
from holdfast.process.brand import make_host_brand
from holdfast.process.endings.ending import KILL_POLL_SECONDS, Signaller
from holdfast.process.groups import list_groups, name_group_folder
from holdfast.process.table import ProcessEntry
from holdfast.process.urgent import urgent

# One scan can miss a child that was forked during the scan and whose parent died meanwhile. The
# orphans of a dead guardian are not ours, so several scans stand for the proof that a guardian has.
_EMPTY_SCANS = 3


def sweep(
    host: str,
    *,
    group_homes: Collection[str] = (),
    kill_limit_seconds: float = 10.0,
    signaller: Signaller | None = None,
) -> list[int]:
    """Kill every process that carries `host` in its environment or as its brand, or is in a group
    under `group_homes`, or descends from one; the caller and its ancestors are spared.

    Waits until all are gone, `kill_limit_seconds` at most, and removes the emptied groups. Returns
    the pids that survived SIGKILL, normally none. Raises OSError: the table cannot be read.
    """
    signaller = signaller or Signaller()
    folder = name_group_folder(host)
    ours = [home for home in group_homes if home[:1] == "/" and home.endswith(f"/{folder}")]
    group_homes = ours  # SWEEP-2
    with urgent():
        leftovers = _Leftovers(host, group_homes, folder)
        survivors = _end_leftovers(leftovers, group_homes, kill_limit_seconds, signaller)
    for home in group_homes:
        for group in list_groups(home):
            group.remove()
        with contextlib.suppress(OSError):
            os.rmdir(home)  # not empty: a survivor is in it; gone: nothing to do
    return survivors


def _end_leftovers(
    leftovers: _Leftovers,
    group_homes: Collection[str],
    kill_limit_seconds: float,
    signaller: Signaller,
) -> list[int]:
    give_up_at = time.monotonic() + kill_limit_seconds
    empty_scans = 0
    while True:
        try:
            for home in group_homes:
                for group in list_groups(home):
                    signaller.kill_group(group)
            members, clear = leftovers.find()
        except OSError:
            if time.monotonic() >= give_up_at:
                raise
            members, clear = [], False
        empty_scans = empty_scans + 1 if clear and not members else 0
        if empty_scans == _EMPTY_SCANS or time.monotonic() >= give_up_at:
            break
        for entry in members:
            signaller.send(entry, signal.SIGKILL)
        time.sleep(KILL_POLL_SECONDS)
    return sorted(entry.pid for entry in members)


class _Leftovers:
    """Scans for the processes of a host, and the evidence gathered so far."""

    def __init__(self, host: str, group_homes: Collection[str], folder: str) -> None:
        self._host = host
        self._group_homes = group_homes
        self._folder = folder
        self._brand = make_host_brand(host)
        self._spared = process_table.read_ancestors(os.getpid())
        self._unmarked: set[tuple[int, int]] = set()
        self._seen: set[tuple[int, int]] = set()
        self._exiting: set[tuple[int, int]] = set()

    def find(self) -> tuple[list[ProcessEntry], bool]:
        """Scan once. Returns the living leftovers, and whether none may have hidden a child from
        this scan (TREE-4)."""
        table = process_table.read_table()
        groups = [group for home in self._group_homes for group in list_groups(home)]
        in_groups = {pid for group in groups for pid in group.read_pids()}
        found = {pid for pid, entry in table.items() if pid in in_groups or self._is_ours(entry)}
        below = found = found - self._spared
        while below:
            children = {pid for pid, entry in table.items() if entry.ppid in below}
            below = children - found - self._spared
            found |= below
        self._seen.update(table[pid].identity for pid in found)
        # Only what was seen to exit before a scan has all its children in that scan. On a busy host
        # some process always exits; of those only the ones that an earlier guardian left matter,
        # which have become children of an ancestor of ours, or have a parent as young.
        before, self._exiting = self._exiting, set()
        for entry in table.values():
            orphaned = entry.ppid in self._spared or entry.ppid not in table
            if entry.exiting and entry.alive and orphaned:
                self._exiting.add(entry.identity)
        living = [table[pid] for pid in found if table[pid].alive]
        return living, self._exiting <= before | self._unmarked

    def _is_ours(self, entry: ProcessEntry) -> bool:
        if entry.identity in self._seen:
            return True
        if entry.identity in self._unmarked or not entry.alive:
            return False
        if process_table.read_group(entry.witness, self._folder):
            return True
        brand = process_table.read_brand(entry.pid)
        if brand is not None and brand[1] == self._brand:  # BRAND-1
            return True
        environ = process_table.read_environ(entry.witness)
        if environ and process_table.find_marks(environ)[1] == self._host:
            return True
        if environ or environ is None or entry.bare:
            self._unmarked.add(entry.identity)
        return False
