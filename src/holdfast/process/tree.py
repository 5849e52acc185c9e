"""Find and end whole process trees, grandchildren that ran away included.

Evidence that a process belongs to a task, strongest first: it is in the task's control group; it was seen
in the tree before (pid and start time); it is in the session the task leads; its environment carries both
of the task's marks; its parent belongs to the task. What still escapes (a cleared environment, a new
session, a dead parent, no control group, never seen before) has become the sub-reaper's child; it is
counted to a task when no other living task could have made it. It is never taken from a task that still
runs.

TREE-1  Both marks must match, task *and* host: keys of two clusters may coincide on one machine.
TREE-2  A task is over when no process of its tree lives, not when its first process exits.
TREE-3  SIGKILL is repeated over fresh scans until nothing is left, so that a fork that raced the scan is
        found by the next. Between scans, what the family makes is killed as soon as it shows (`look_closer`).
TREE-4  A tree is gone when a scan finds nobody of it *and* nobody can have hidden from that scan. A scan is no instant: a
        process may fork after the listing and die before it is read. The dead one's child has then become ours, so
        a child of ours that no look has seen calls for another look. And one that is just exiting or in an exec shows
        neither mark nor (v1) group, and keeps its children to itself until it is a zombie: the group itself knows those
        children; without one, nobody is gone while somebody cannot be asked who may be of the tree.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from typing import NamedTuple, Protocol

import msgspec

from holdfast.process import table as process_table
from holdfast.process.groups import TaskGroup, name_group_folder
from holdfast.process.spawn import Child
from holdfast.process.table import HOST_VARIABLE, TASK_VARIABLE, ProcessEntry

KILL_POLL_SECONDS = 0.005
GRACE_POLL_SECONDS = 0.02
_KILL_POLL_MAX_SECONDS = 0.1
# Other tasks may make orphans all the time, and must not keep the caller from its other work: what is not clear by then is
# asked again at the next step.
_MAX_SCANS = 3
_MAX_LOOKS = 50
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Mark(msgspec.Struct, frozen=True):
    """What a task's processes carry in their environment: which task, on which host."""

    task: str
    host: str

    def as_env(self) -> dict[str, str]:
        """The two variables to add to the task's environment."""
        return {TASK_VARIABLE: self.task, HOST_VARIABLE: self.host}


class Finding(NamedTuple):
    """What is left of a tree. `unclear`: pids of processes that may be of it, or may hide one; ask again."""

    members: list[ProcessEntry]
    unclear: list[int]

    @property
    def gone(self) -> bool:
        """True only if the whole tree is gone."""
        return not self.members and not self.unclear


class Signaller:
    """How processes are signalled.

    Tests hand in one that spares some, which is what an unkillable process looks like.
    """

    def send(self, entry: ProcessEntry, number: int) -> bool:
        """Signal one process; False when it was gone."""
        return process_table.send_signal(entry, number)

    def kill_group(self, group: TaskGroup) -> bool:
        """Kill a whole control group at once; False where the kernel cannot."""
        return group.kill()


class ProcessReader(Protocol):
    """Where processes are read: `process.table`, or a kernel made up by a test."""

    def read_table(self) -> dict[int, ProcessEntry]:
        """Every process there is."""

    def read_entry(self, pid: int) -> ProcessEntry | None:
        """One process; None when there is none."""

    def read_children(self, pid: int) -> list[int] | None:
        """The children of a process, zombies included; None where the kernel does not say."""

    def read_group(self, pid: int, folder: str) -> str | None:
        """The group below `folder` that a process says it is in."""

    def read_environ(self, pid: int) -> bytes | None:
        """The environment; empty where there is none (now), None where it may not be read."""


class Tree:
    """A task's processes: the first one, its group, and everyone ever seen to belong."""

    __slots__ = ("first_reaped", "group", "leads", "mark", "pid", "seen", "start_ticks", "trusted")

    def __init__(
        self, mark: Mark, child: Child, group: TaskGroup | None, *, trusted: bool = False, leads: bool = False
    ) -> None:
        self.mark = mark
        self.pid = child.pid
        # Read just before the fork, so no descendant is older.
        self.start_ticks = int(child.started_at * _TICKS_PER_SECOND)
        self.group = group
        self.trusted = trusted  # our own program: it never hides a process, so it is no suspect
        self.leads = leads  # its first process passes TERM on by itself
        self.first_reaped = False  # until then the first pid cannot be anybody else's
        self.seen: set[tuple[int, int]] = set()


class Forest:
    """All trees below one sub-reaper: the process that calls this."""

    def __init__(self, host: str, *, proc: ProcessReader = process_table, reaper: int | None = None) -> None:
        self.host = host
        self._proc = proc
        self.trees: dict[str, Tree] = {}
        self._group_folder = name_group_folder(host)
        self._reaper = reaper or os.getpid()
        self._unmarked: set[tuple[int, int]] = set()
        self._first_pids: dict[int, str] = {}
        self._sessions: dict[int, str] = {}  # session → the task whose first process leads it
        self._adopted: dict[int, str] = {}  # pid of an orphan of ours → its task, "" where nothing tells
        self._veiled: dict[int, ProcessEntry] = {}  # those that the last scan or look could not ask, by pid
        # As init of a container we inherit strangers too (`docker exec`), so guilt by elimination does not
        # hold.
        self._judge_by_elimination = self._reaper != 1
        self._innocent = set(self._proc.read_children(self._reaper) or [])

    def add(self, tree: Tree) -> None:
        """Begin to track a tree."""
        self.trees[tree.mark.task] = tree
        self._first_pids[tree.pid] = tree.mark.task

    def remove(self, tree: Tree) -> None:
        """Forget a tree that is over."""
        self.trees.pop(tree.mark.task, None)
        if not tree.first_reaped:
            self._first_pids.pop(tree.pid, None)

    def note_exit(self, pid: int) -> None:
        """A child was reaped: its number may come back as somebody else's."""
        task = self._first_pids.pop(pid, None)
        if task is not None:
            self.trees[task].first_reaped = True
        self._adopted.pop(pid, None)
        self._veiled.pop(pid, None)
        self._innocent.discard(pid)

    def is_surely_empty(self, tree: Tree) -> bool:
        """A cheap answer once the first process was reaped: True only if nothing of the tree can be left.

        When a process dies its children become the sub-reaper's at once. So if the sub-reaper has no child
        that it does not know, and the group is empty, the tree is gone; no scan of the whole table is
        needed.
        """
        if tree.group is not None and tree.group.read_pids():
            return False
        children = self._proc.read_children(self._reaper)
        if children is None:
            return False
        for pid in children:
            if pid in self._first_pids or pid in self._innocent:
                continue
            task = self._adopted.get(pid)
            if task is None or task == tree.mark.task or (task == "" and tree.group is None):
                return False
        return True

    def find_living(self, tree: Tree) -> Finding:
        """The living members of one tree; nothing found at all proves that the tree is gone (TREE-4)."""
        unclear: list[int] = []
        for _ in range(_MAX_SCANS):
            members = self.find_members().get(tree.mark.task, [])
            for _ in range(_MAX_LOOKS):
                if members:
                    return Finding(members, [])
                members, passing = self.look_closer(tree)
                if not members and not passing:
                    break
            else:
                return Finding(members, passing)
            if tree.group is None:
                unclear = sorted(pid for pid, entry in self._veiled.items() if entry.start_ticks >= tree.start_ticks)
            if not unclear:
                break
        return Finding([], unclear)

    def find_members(self) -> dict[str, list[ProcessEntry]]:
        """Scan the process table once and return the living members of every tree, by task."""
        table = self._proc.read_table()
        table.pop(self._reaper, None)
        identities = {entry.identity for entry in table.values()}
        self._unmarked &= identities
        self._sessions = {}
        for task, tree in self.trees.items():
            tree.seen &= identities
            if not (tree.first_reaped and tree.pid in table):
                # The number of a session is not given out again while it has members; if it was, it has none.
                self._sessions[tree.pid] = task
        self._adopted.clear()
        self._veiled.clear()
        return self._assign(table)

    def look_closer(self, tree: Tree, skip: Collection[int] = ()) -> tuple[list[ProcessEntry], list[int]]:
        """Read only what can have come since the last scan: children of ours that it did not see, and the tree's group.

        Much quicker than a scan, so that it can catch up with a family that forks without a rest. Returns the living members
        of the tree found, without those in `skip`, and the pids of those that died meanwhile and may have left children.
        """
        in_group = set(tree.group.read_pids()).difference(skip) if tree.group is not None else set()
        new = {pid for pid in self._read_children() if pid not in self._first_pids and pid not in self._innocent}
        new -= self._adopted.keys()
        entries = [self._proc.read_entry(pid) for pid in in_group | new]
        table = {entry.pid: entry for entry in entries if entry is not None}
        members = self._assign(table).get(tree.mark.task, [])
        # Under v1 an exiting process has left its group when it is asked itself, but not yet when the group is.
        members += [table[pid] for pid in in_group & self._veiled.keys() & table.keys() if table[pid].alive]
        return members, [
            pid for pid in in_group | new if pid not in table or not table[pid].alive or table[pid].exiting
        ]

    def _read_children(self) -> list[int]:
        children = self._proc.read_children(self._reaper)
        if children is None:
            children = [e.pid for e in self._proc.read_table().values() if e.ppid == self._reaper]
        return children

    def _assign(self, table: dict[int, ProcessEntry]) -> dict[str, list[ProcessEntry]]:
        """Say whose the processes of a table are, whole or in part, and remember it. Returns the living, by task."""
        owner = self._find_owned(table)
        _inherit_owner(table, owner)
        self._judge_orphans(table, owner)
        members: dict[str, list[ProcessEntry]] = {task: [] for task in self.trees}
        for entry in table.values():
            task = owner.get(entry.pid)
            if task is not None:
                self.trees[task].seen.add(entry.identity)
                if entry.alive:
                    members[task].append(entry)
            elif entry.alive and entry.identity not in self._unmarked:
                self._veiled[entry.pid] = entry
            if entry.ppid == self._reaper and entry.pid not in self._first_pids:
                self._adopted[entry.pid] = task or ""
        return members

    def _find_owned(self, table: dict[int, ProcessEntry]) -> dict[int, str]:
        owner: dict[int, str] = {}
        groups = {tree.group.name: task for task, tree in self.trees.items() if tree.group is not None}
        seen = {identity: task for task, tree in self.trees.items() for identity in tree.seen}
        for entry in table.values():
            known = self._first_pids.get(entry.pid) or seen.get(entry.identity)
            if known is not None:
                owner[entry.pid] = known
                continue
            if entry.identity in self._unmarked:
                continue
            group = self._proc.read_group(entry.witness, self._group_folder) if groups and entry.alive else None
            if group is not None and group in groups:  # GROUP-1
                owner[entry.pid] = groups[group]
            elif entry.session in self._sessions:
                owner[entry.pid] = self._sessions[entry.session]
            elif entry.alive:
                task = self._ask_environ(entry, table)
                if task is not None:
                    owner[entry.pid] = task
        return owner

    def _ask_environ(self, entry: ProcessEntry, table: dict[int, ProcessEntry]) -> str | None:
        """Whose a process is by its environment. One that has none and can have one next time is not set down as unmarked."""
        environ = self._proc.read_environ(entry.witness)
        if environ:
            task, host = process_table.find_marks(environ)
            if host == self.host and task in self.trees:  # TREE-1
                return task
        elif environ is not None and not entry.bare and self._may_be_below_us(entry, table):
            now = self._proc.read_entry(entry.pid)
            if now is None or now.start_ticks != entry.start_ticks:
                entry.alive = False
            else:
                entry.alive, entry.exiting = now.alive, now.exiting
            return None
        self._unmarked.add(entry.identity)
        return None

    def _may_be_below_us(self, entry: ProcessEntry, table: dict[int, ProcessEntry]) -> bool:
        """False when all ancestors are known and we are not among them."""
        steps = 0
        pid = entry.ppid
        while pid in table and steps < len(table):
            pid = table[pid].ppid
            steps += 1
        return pid != 0

    def _judge_orphans(self, table: dict[int, ProcessEntry], owner: dict[int, str]) -> None:
        """Count an orphan without any evidence to the one task that can have made it, if it is only one."""
        if not self._judge_by_elimination:
            return
        for entry in table.values():
            if entry.ppid != self._reaper or entry.pid in owner or entry.pid in self._innocent:
                continue
            suspects = [
                task
                for task, tree in self.trees.items()
                if tree.group is None and not tree.trusted and tree.start_ticks <= entry.start_ticks
            ]
            if len(suspects) == 1:
                owner[entry.pid] = suspects[0]
                _inherit_owner(table, owner)


def _inherit_owner(table: dict[int, ProcessEntry], owner: dict[int, str]) -> None:
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


class Ending:
    """One tree being ended: TERM to all of it, a grace, then KILL until nothing is left or a limit passed.

    A state machine without a clock or a wait of its own: call `step(now)` at `next_at` or sooner (when
    something exited) until it returns True. Then `survivors` are the pids that SIGKILL did not end: none,
    in a healthy world. All times are of one clock, the caller's.
    """

    def __init__(
        self,
        tree: Tree,
        forest: Forest,
        *,
        now: float,
        grace_seconds: float,
        kill_limit_seconds: float,
        signaller: Signaller,
    ) -> None:
        self.tree = tree
        self.kill_at = now + grace_seconds
        self.next_at = now
        self.survivors: list[int] = []
        self.first_exited = False  # set by whoever reaped the tree's first process
        self._forest = forest
        self._kill_limit_seconds = kill_limit_seconds
        self._signaller = signaller
        self._warned = grace_seconds <= 0
        self._kill_began: float | None = None
        self._poll_seconds = KILL_POLL_SECONDS
        self._signalled: set[tuple[int, int]] = set()

    def hasten(self, kill_at: float) -> None:
        """Bring the KILL forward; a later time changes nothing."""
        if kill_at < self.kill_at:
            self.kill_at = kill_at
            self.next_at = min(self.next_at, kill_at)

    def step(self, now: float) -> bool:
        """Do what is due. True when it is over: the tree is gone, or its survivors are given up."""
        if now >= self.kill_at:
            return self._kill(now)
        if not self._warned:
            self._warned = True
            for entry in self._forest.find_living(self.tree).members:
                if self.tree.leads and entry.pid != self.tree.pid:
                    continue
                self._signaller.send(entry, signal.SIGTERM)
                # A stopped process takes a TERM only when it goes on.
                self._signaller.send(entry, signal.SIGCONT)
        elif self.first_exited and (
            self._forest.is_surely_empty(self.tree) or self._forest.find_living(self.tree).gone
        ):
            return True
        self.next_at = min(self.kill_at, now + GRACE_POLL_SECONDS) if self.first_exited else self.kill_at
        return False

    def _kill(self, now: float) -> bool:
        if self._kill_began is None:
            self._kill_began = now
        elif self.first_exited and self._forest.is_surely_empty(self.tree):
            return True
        group = self.tree.group
        if group is not None:
            self._signaller.kill_group(group)
        found = self._forest.find_living(self.tree)
        if found.gone:
            return True
        if now - self._kill_began >= self._kill_limit_seconds:
            self.survivors = sorted(entry.pid for entry in found.members) or found.unclear
            return True
        if self._strike(found.members):
            self._poll_seconds = KILL_POLL_SECONDS
        self.next_at = now + self._poll_seconds
        self._poll_seconds = min(self._poll_seconds * 1.5, _KILL_POLL_MAX_SECONDS)
        return False

    def _strike(self, members: list[ProcessEntry]) -> bool:
        """Kill the members, and what they made meanwhile, and what that made. True if any of it was new to us."""
        before = len(self._signalled)
        for entry in members:
            self._signaller.send(entry, signal.SIGKILL)
            self._signalled.add(entry.identity)
        for _ in range(_MAX_LOOKS):
            members, passing = self._forest.look_closer(self.tree, {pid for pid, _ in self._signalled})
            fresh = [entry for entry in members if entry.identity not in self._signalled]
            if not fresh and not passing:
                break
            for entry in fresh:
                self._signaller.send(entry, signal.SIGKILL)
                self._signalled.add(entry.identity)
        return len(self._signalled) > before
