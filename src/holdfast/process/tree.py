"""Find whole process trees, grandchildren that ran away included.

Evidence that a process belongs to a task, strongest first: it is in the task's control group; it
was seen in the tree before (pid and start time); it is in the session the task leads; it has the
task's brand; its environment carries both of the task's marks; its parent belongs to the task. A
process that escapes all of these (a limit set anew, a cleared environment, a new session, a dead
parent, no control group, never seen before) has become the sub-reaper's child; it is counted to a
task when no other living task could have made it.

TREE-1  Both marks must match, task *and* host: keys of two clusters may coincide on one machine.
TREE-2  A task is over when no process of its tree lives, not when its first process exits.
TREE-3  SIGKILL is repeated over fresh scans until nothing is left, so that a fork that raced the
        scan is found by the next. Between scans, what the family makes is killed as soon as it is
        read (`Forest.chase`): a process that forks on every few milliseconds is gone by the time a
        list of them is complete.
TREE-4  A tree is gone when a scan finds no process of it *and* none can have hidden from that scan.
        A scan is no instant: a process may fork after the listing and die before it is read. Its
        child has then become ours, so a child of ours that no look has seen calls for another look.
        And a process that is just exiting or in an exec shows neither mark nor (v1) group, and
        keeps its children until it is a zombie: the group itself knows those children; without a
        group, a tree is not gone while a process that may be of it cannot be asked.
TREE-5  Trees that are ended together share every scan and every look, and each process found is
        killed for the tree that owns it: the work of a round grows with the processes there are,
        not with the trees. A tree takes part in a scan that began after its ending did and after
        the one it used before; what looks found since then is added to it.
TREE-6  What cannot be read is unknown (TABLE-1): no tree is said to be gone on it and none is given
        up; its first process's group, whose number needs no look-up, still gets its signals.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from holdfast.process import table as process_table
from holdfast.process.brand import make_host_brand, make_task_brand
from holdfast.process.groups import TaskGroup, name_group_folder
from holdfast.process.spawn import Child
from holdfast.process.table import HOST_VARIABLE, TASK_VARIABLE, ProcessEntry, ProcessReader

# Tasks may make orphans all the time; a tree that is unclear after so many looks waits for a step.
_MAX_LOOKS = 50
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Mark(msgspec.Struct, frozen=True):
    """The marks in the environment of a task's processes: the task, and its host."""

    task: str
    host: str

    def as_env(self) -> dict[str, str]:
        """Return the two variables to add to the task's environment."""
        return {TASK_VARIABLE: self.task, HOST_VARIABLE: self.host}


class Finding(NamedTuple):
    """The processes left of a tree. unclear: the pids that may be of the tree, or may hide a
    process of it; ask again."""

    members: list[ProcessEntry]
    unclear: list[int]

    @property
    def gone(self) -> bool:
        """Return True only if the whole tree is gone."""
        return not self.members and not self.unclear


class Tree:
    """A task's processes: the first one, its group, and the progress of the search for the others.

    trusted: True for Holdfast's own program, which never hides a process. leads: True where its
    first process passes a TERM on by itself. first_reaped: True once the first pid may be another
    process's. scanned: the last scan that included the tree. shoot: while the tree is killed, the
    function called with each process found; else None.
    """

    def __init__(
        self,
        mark: Mark,
        child: Child,
        group: TaskGroup | None,
        *,
        trusted: bool = False,
        leads: bool = False,
        brand: tuple[int, int] | None = None,
    ) -> None:
        self.mark = mark
        self.brand = brand
        self.pid = child.pid
        self._child = child
        # Read just before the fork, so no descendant is older.
        self.start_ticks = int(child.started_at * _TICKS_PER_SECOND)
        self.group = group
        self.trusted = trusted
        self.leads = leads
        self.first_reaped = False
        self.scanned = 0
        self.shoot: Callable[[ProcessEntry], None] | None = None

    @property
    def program_pid(self) -> int:
        """Return the program's own pid, which is not the first process's below a keeper."""
        return self._child.program_pid


class Forest:
    """All trees below one sub-reaper: the process that calls this."""

    def __init__(
        self,
        host: str,
        *,
        proc: ProcessReader = process_table,
        reaper: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host = host
        self._proc = proc
        self._clock = clock
        self.trees: dict[str, Tree] = {}
        self._group_folder = name_group_folder(host)
        self._reaper = reaper or os.getpid()
        self._unmarked: set[tuple[int, int]] = set()
        self._seen: dict[tuple[int, int], str] = {}  # every process ever seen in a tree → task
        self._first_pids: dict[int, str] = {}
        self._groups: dict[str, str] = {}  # name of a control group → its task
        self._brands: dict[tuple[int, int], str] = {}
        self._host_brand, self._next_brand = make_host_brand(host), 0
        self._sessions: dict[int, str] = {}  # session → the task whose first process leads it
        # Of the last scan, and what looks have added since:
        self._serial = 0
        self._whole = False  # True where the last scan came to its end
        self._found: dict[str, dict[tuple[int, int], ProcessEntry]] = {}  # living members, by task
        self._adopted: dict[int, str] = {}  # pid of an orphan → its task, "" where nothing tells
        self._orphans: dict[int, ProcessEntry] = {}  # orphans whose task is unknown
        self._veiled: dict[int, ProcessEntry] = {}  # pid → one with unreadable marks
        self._shots = 0
        self._fewer_suspects = False
        self._turn_ends_at = float("inf")
        # The init of a container inherits strangers too (`docker exec`), which no task has made.
        self._judge_by_elimination = self._reaper != 1
        self._innocent = set(self._proc.read_children(self._reaper) or [])

    def add(self, tree: Tree) -> None:
        """Begin to track a tree."""
        self.trees[tree.mark.task] = tree
        self._first_pids[tree.pid] = tree.mark.task
        if tree.group is not None:
            self._groups[tree.group.name] = tree.mark.task
        if tree.brand is not None:
            self._brands[tree.brand] = tree.mark.task
        self.want_new_scan(tree)

    def remove(self, tree: Tree) -> None:
        """Forget a tree that is over."""
        task = tree.mark.task
        if self.trees.pop(task, None) is None:
            return
        if not tree.first_reaped:
            self._first_pids.pop(tree.pid, None)
        if tree.group is not None:
            self._groups.pop(tree.group.name, None)
        if tree.brand is not None:
            self._brands.pop(tree.brand, None)
        for entry in self._found.pop(task, {}).values():
            self._seen.pop(entry.identity, None)
        self._fewer_suspects = True
        tree.shoot = None

    def spare(self, pid: int) -> None:
        """Count a child of this process as no task's, because Holdfast made it."""
        self._innocent.add(pid)

    def make_brand(self) -> tuple[int, int]:
        """Return a brand for the next tree and its first process (BRAND-1)."""
        self._next_brand += 1
        return make_task_brand(self._next_brand), self._host_brand

    def note_exit(self, pid: int) -> None:
        """Note that a child was reaped, because its number may come back as another process's."""
        task = self._first_pids.pop(pid, None)
        if task is not None:
            self.trees[task].first_reaped = True
        self._adopted.pop(pid, None)
        self._orphans.pop(pid, None)
        self._veiled.pop(pid, None)
        self._innocent.discard(pid)

    def begin_turn(self, seconds: float) -> None:
        """Make searches that take longer than `seconds` from now return unclear."""
        self._turn_ends_at = self._clock() + seconds

    @property
    def turn_is_over(self) -> bool:
        """Return whether the time given to `begin_turn` is used up."""
        return self._clock() >= self._turn_ends_at

    def want_new_scan(self, tree: Tree) -> None:
        """Answer the next question about the tree from a scan that begins after now."""
        tree.scanned = self._serial

    def is_surely_empty(self, tree: Tree) -> bool:
        """Return True only if nothing of the tree can be left, once its first process was reaped.

        When a process dies its children become the sub-reaper's at once. So if the sub-reaper has
        no child that it does not know, and the group is empty, the tree is gone; no scan of the
        whole table is needed.
        """
        try:
            if tree.group is not None and tree.group.read_pids():
                return False
        except OSError:
            return False  # TREE-6
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
        """Return the living members of one tree; an empty finding proves that the tree is gone
        (TREE-4).

        Raises OSError: unknown (TREE-6).
        """
        if tree.scanned >= self._serial or not self._whole:
            self.find_members()
        tree.scanned = self._serial
        self._judge_again()
        for _ in range(_MAX_LOOKS):
            members = self._found.get(tree.mark.task)
            passing = [] if members else self._look(tree)
            members = self._found.get(tree.mark.task)
            if members:
                return Finding(list(members.values()), [])
            if not passing:
                break
            if self.turn_is_over:
                return Finding([], passing)
        else:
            return Finding([], passing)
        if tree.group is not None:
            return Finding([], [])
        veiled = self._veiled.items()
        return Finding([], sorted(p for p, e in veiled if e.start_ticks >= tree.start_ticks))

    def find_members(self) -> dict[str, list[ProcessEntry]]:
        """Scan the process table once; return the living members of every tree, by task.

        Raises OSError: unknown (TREE-6).
        """
        self._whole = False
        table = self._proc.read_table()
        table.pop(self._reaper, None)
        identities = {entry.identity for entry in table.values()}
        self._unmarked &= identities
        seen = self._seen.items()
        self._seen = {one: task for one, task in seen if one in identities and task in self.trees}
        self._sessions = {}
        for task, tree in self.trees.items():
            for leader in {tree.pid, tree.program_pid}:
                if not (tree.first_reaped and leader in table):
                    # The number of a session is given out again only when it has no members.
                    self._sessions[leader] = task
        self._found, self._adopted, self._orphans, self._veiled = {}, {}, {}, {}
        self._assign(table)
        self._serial += 1
        self._whole = True
        return {task: list(self._found.get(task, {}).values()) for task in self.trees}

    def chase(self, tree: Tree) -> None:
        """Look for processes of a tree again, as long as a look finds a process to kill, or a
        process that may have left a child (TREE-3)."""
        for _ in range(_MAX_LOOKS):
            before = self._shots
            if (not self._look(tree) and self._shots == before) or self.turn_is_over:
                break

    def _look(self, tree: Tree) -> list[int]:
        """Read only the processes that can have come since the last scan: new children of this
        process, and members of the group.

        Much quicker than a scan, so that it can catch up with a family that forks without a rest.
        Returns the pids of processes that died meanwhile and may have left children.
        """
        known = {pid for pid, _ in self._found.get(tree.mark.task, ())}
        in_group = set(tree.group.read_pids()) - known if tree.group is not None else set()
        new = set(self._read_children()) - self._first_pids.keys() - self._innocent
        passing = []
        for pid in in_group | (new - self._adopted.keys()):
            entry = self._proc.read_entry(pid)
            if entry is not None:
                self._assign({pid: entry})
                if entry.alive and pid in in_group and pid in self._veiled:
                    # Under v1 an exiting process has left its group when it is asked itself, but
                    # not yet when the group is.
                    self._claim(entry, tree.mark.task)
            if entry is None or not entry.alive or entry.exiting:
                passing.append(pid)
        return passing

    def _read_children(self) -> list[int]:
        children = self._proc.read_children(self._reaper)
        if children is None:
            children = [e.pid for e in self._proc.read_table().values() if e.ppid == self._reaper]
        return children

    def _assign(self, table: dict[int, ProcessEntry]) -> None:
        """Find the owners of the processes of a table, whole or in part, and remember them."""
        owner = self._find_owned(table)
        _inherit_owner(table, owner)
        for entry in table.values():
            unknown = entry.pid not in owner and entry.pid not in self._innocent
            if entry.ppid == self._reaper and unknown:
                only = self._find_only_suspect(entry)
                if only is not None:
                    owner[entry.pid] = only
        _inherit_owner(table, owner)
        for entry in table.values():
            task = owner.get(entry.pid)
            if task is not None:
                self._claim(entry, task)
            elif entry.alive and entry.identity not in self._unmarked:
                self._veiled[entry.pid] = entry
            if entry.ppid == self._reaper and entry.pid not in self._first_pids:
                self._adopted[entry.pid] = task or ""
                if task is None:
                    self._orphans[entry.pid] = entry

    def _claim(self, entry: ProcessEntry, task: str) -> None:
        """Note that a process belongs to the task."""
        self._seen[entry.identity] = task
        if entry.alive:
            self._found.setdefault(task, {})[entry.identity] = entry
            shoot = self.trees[task].shoot
            if shoot is not None:
                self._shots += 1
                # Its own ending shoots again and reports failures; other trees need this scan, too.
                with contextlib.suppress(Exception):
                    shoot(entry)

    def _find_owned(self, table: dict[int, ProcessEntry]) -> dict[int, str]:
        owner: dict[int, str] = {}
        for entry in table.values():
            known = self._first_pids.get(entry.pid) or self._seen.get(entry.identity)
            if known is not None:
                owner[entry.pid] = known
                continue
            if entry.identity in self._unmarked:
                continue
            asked = self._groups and entry.alive
            group = self._proc.read_group(entry.witness, self._group_folder) if asked else None
            if group is not None and group in self._groups:  # GROUP-1
                owner[entry.pid] = self._groups[group]
            elif entry.session in self._sessions:
                owner[entry.pid] = self._sessions[entry.session]
            elif entry.alive:
                task = self._ask_brand(entry) or self._ask_environ(entry, table)
                if task is not None:
                    owner[entry.pid] = task
        return {pid: task for pid, task in owner.items() if task in self.trees}

    def _ask_brand(self, entry: ProcessEntry) -> str | None:
        brand = self._proc.read_brand(entry.pid) if self._brands else None
        return self._brands.get(brand) if brand is not None else None

    def _ask_environ(self, entry: ProcessEntry, table: dict[int, ProcessEntry]) -> str | None:
        """Return a process's task by its environment. A process that may only have no environment
        now is asked again."""
        environ = self._proc.read_environ(entry.witness)
        if environ:
            task, host = process_table.find_marks(environ)
            if host == self.host and task in self.trees:  # TREE-1
                return task
        elif environ is not None and not entry.bare and _may_be_below(entry, table):
            now = self._proc.read_entry(entry.pid)
            if now is None or now.start_ticks != entry.start_ticks:
                entry.alive = False
            else:
                entry.alive, entry.exiting = now.alive, now.exiting
            return None
        self._unmarked.add(entry.identity)
        return None

    def _find_only_suspect(self, entry: ProcessEntry) -> str | None:
        """Return the only task that can have made an orphan; None if several tasks can."""
        if not self._judge_by_elimination:
            return None
        only = None
        for task, tree in self.trees.items():
            if tree.group is None and not tree.trusted and tree.start_ticks <= entry.start_ticks:
                if only is not None:
                    return None
                only = task
        return only

    def _judge_again(self) -> None:
        """Judge orphans anew once a tree was removed, because some may have only one suspect left
        now."""
        if not self._fewer_suspects:
            return
        self._fewer_suspects = False
        for pid, entry in list(self._orphans.items()):
            only = self._find_only_suspect(entry)
            if only is not None and pid not in self._innocent:
                del self._orphans[pid]
                self._adopted[pid] = only
                self._claim(entry, only)


def _inherit_owner(table: Mapping[int, ProcessEntry], owner: dict[int, str]) -> None:
    """Give every process without an owner the owner of its nearest ancestor that has one."""
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


def _may_be_below(entry: ProcessEntry, table: Mapping[int, ProcessEntry]) -> bool:
    """Return whether a process may descend from one that is not in the table, such as this
    process."""
    steps = 0
    pid = entry.ppid
    while pid in table and steps < len(table):
        pid = table[pid].ppid
        steps += 1
    return pid != 0
