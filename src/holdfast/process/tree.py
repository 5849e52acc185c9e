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
        found by the next.
"""

from __future__ import annotations

import os
import signal

import msgspec

from holdfast.process import table as process_table
from holdfast.process.groups import TaskGroup, name_group_folder
from holdfast.process.spawn import Child
from holdfast.process.table import HOST_VARIABLE, TASK_VARIABLE, ProcessEntry

KILL_POLL_SECONDS = 0.005
GRACE_POLL_SECONDS = 0.02
_KILL_POLL_MAX_SECONDS = 0.1
_MAX_RESCANS = 50  # other tasks may make orphans all the time; they must not hold up this one's end
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Mark(msgspec.Struct, frozen=True):
    """What a task's processes carry in their environment: which task, on which host."""

    task: str
    host: str

    def as_env(self) -> dict[str, str]:
        """The two variables to add to the task's environment."""
        return {TASK_VARIABLE: self.task, HOST_VARIABLE: self.host}


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

    def __init__(self, host: str) -> None:
        self.host = host
        self.trees: dict[str, Tree] = {}
        self._group_folder = name_group_folder(host)
        self._reaper = os.getpid()
        self._unmarked: set[tuple[int, int]] = set()
        self._first_pids: dict[int, str] = {}
        self._adopted: dict[int, str] = {}  # pid of an orphan of ours → its task, "" where nothing tells
        # As init of a container we inherit strangers too (`docker exec`), so guilt by elimination does not
        # hold.
        self._judge_by_elimination = self._reaper != 1
        self._innocent = set(process_table.read_children(self._reaper) or [])

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
        self._innocent.discard(pid)

    def is_surely_empty(self, tree: Tree) -> bool:
        """A cheap answer once the first process was reaped: True only if nothing of the tree can be left.

        When a process dies its children become the sub-reaper's at once. So if the sub-reaper has no child
        that it does not know, and the group is empty, the tree is gone; no scan of the whole table is
        needed.
        """
        if tree.group is not None and tree.group.read_pids():
            return False
        children = process_table.read_children(self._reaper)
        if children is None:
            return False
        for pid in children:
            if pid in self._first_pids or pid in self._innocent:
                continue
            task = self._adopted.get(pid)
            if task is None or task == tree.mark.task or (task == "" and tree.group is None):
                return False
        return True

    def find_living(self, tree: Tree) -> list[ProcessEntry]:
        """The living members of one tree. Empty only if no fork can have slipped past the scan (TREE-3).

        A scan is no instant: a process may fork and die between being listed and being read, and its child be too young to be
        listed. Such a child becomes the sub-reaper's, so a child of ours that the scan did not see calls for another scan.
        """
        members: list[ProcessEntry] = []
        for _ in range(_MAX_RESCANS):
            members = self.find_members().get(tree.mark.task, [])
            if members or not self._has_unseen_child():
                break
        return members

    def _has_unseen_child(self) -> bool:
        children = process_table.read_children(self._reaper)
        if children is None:
            return False
        known = self._first_pids.keys() | self._innocent | self._adopted.keys()
        return any(pid not in known for pid in children)

    def find_members(self) -> dict[str, list[ProcessEntry]]:
        """Scan the process table once and return the living members of every tree, by task."""
        table = process_table.read_table()
        table.pop(self._reaper, None)
        owner = self._find_owned(table)
        _inherit_owner(table, owner)
        self._judge_orphans(table, owner)
        members: dict[str, list[ProcessEntry]] = {task: [] for task in self.trees}
        for pid, task in owner.items():
            self.trees[task].seen.add(table[pid].identity)
            if table[pid].alive:
                members[task].append(table[pid])
        self._adopted = {
            entry.pid: owner.get(entry.pid, "")
            for entry in table.values()
            if entry.ppid == self._reaper and entry.pid not in self._first_pids
        }
        return members

    def _find_owned(self, table: dict[int, ProcessEntry]) -> dict[int, str]:
        owner: dict[int, str] = {}
        sessions: dict[int, str] = {}
        groups = {tree.group.name: task for task, tree in self.trees.items() if tree.group is not None}
        for task, tree in self.trees.items():
            if not (tree.first_reaped and tree.pid in table):
                # The number of a session is not given out again while it has members; if it was, it has none.
                sessions[tree.pid] = task
            tree.seen = {(pid, start) for pid, start in tree.seen if pid in table and table[pid].start_ticks == start}
            owner.update((pid, task) for pid, _ in tree.seen)
            if not tree.first_reaped and tree.pid in table:
                owner[tree.pid] = task
        self._unmarked &= {entry.identity for entry in table.values()}
        for entry in table.values():
            if entry.pid in owner:
                continue
            if entry.identity in self._unmarked:
                continue
            group = process_table.read_group(entry.pid, self._group_folder) if groups else None
            if group is not None and group in groups:  # GROUP-1
                owner[entry.pid] = groups[group]
            elif entry.session in sessions:
                owner[entry.pid] = sessions[entry.session]
            else:
                task_mark, host = process_table.read_marks(entry.pid)
                if host == self.host and task_mark in self.trees:  # TREE-1
                    owner[entry.pid] = task_mark
                else:
                    self._unmarked.add(entry.identity)
        return owner

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
            for entry in self._find_members():
                if self.tree.leads and entry.pid != self.tree.pid:
                    continue
                self._signaller.send(entry, signal.SIGTERM)
                # A stopped process takes a TERM only when it goes on.
                self._signaller.send(entry, signal.SIGCONT)
        elif self.first_exited and (self._forest.is_surely_empty(self.tree) or not self._find_members()):
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
        members = self._find_members()
        if not members:
            return True
        if now - self._kill_began >= self._kill_limit_seconds:
            self.survivors = sorted(entry.pid for entry in members)
            return True
        for entry in members:
            self._signaller.send(entry, signal.SIGKILL)
        self.next_at = now + self._poll_seconds
        self._poll_seconds = min(self._poll_seconds * 1.5, _KILL_POLL_MAX_SECONDS)
        return False

    def _find_members(self) -> list[ProcessEntry]:
        return self._forest.find_living(self.tree)
