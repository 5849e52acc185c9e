"""One tree being ended: TERM, a grace, KILL. Its members and its end are found by `process.tree`
(TREE-1 to TREE-6)."""

import contextlib
import os
import signal

from holdfast.process import table as process_table
from holdfast.process.groups import TaskGroup
from holdfast.process.output.pipelines import find_readers
from holdfast.process.spawn import signal_group
from holdfast.process.table import ProcessEntry
from holdfast.process.tree import Forest, Tree

KILL_POLL_SECONDS = 0.005
GRACE_POLL_SECONDS = 0.02
_KILL_POLL_MAX_SECONDS = 0.1
_BLIND_POLL_SECONDS = 0.1
_LEAVING_SECONDS = 0.1  # helpers (a resource tracker) need a moment to end
_END_OF_INPUT_SECONDS = 0.25  # a reader ends by itself after its last writer
_MAX_NAMES = 8


class Signaller:
    """Sends signals to processes. A test passes one that spares some processes, as if they could
    not be killed."""

    def send(self, entry: ProcessEntry, number: int) -> bool:
        """Send a signal to one process. Returns False when the process was gone."""
        return process_table.send_signal(entry, number)

    def kill_group(self, group: TaskGroup) -> bool:
        """Kill a whole control group at once; False where the kernel cannot."""
        return group.kill()

    def send_blindly(self, tree: Tree, number: int, *, alone: bool) -> None:
        """Signal the first process's group, or with `alone` the first process only, without reading
        the process table. The number is safe: it stays the group's as long as its leader, a child
        of this process, was not reaped. This works also where the table cannot be read (TREE-6)."""
        if tree.first_reaped:
            return
        if not alone:
            signal_group(tree.program_pid, number)
            if tree.program_pid != tree.pid and number == signal.SIGKILL:
                signal_group(tree.pid, number)  # its keeper would pass anything else on
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(tree.pid, number)


class TreeEnding:
    """The ending of one tree: TERM, a grace, then KILL until nothing is left or a limit passed.

    The first process gets its TERM at once. The others get it after the first one's exit, or
    `GRACE_POLL_SECONDS` later, because finding them takes milliseconds and most programs leave
    none. A process that only reads the output of others in the tree gets its TERM after them
    (PIPE-1). Processes left after the first one's exit have `_LEAVING_SECONDS` to end by
    themselves; then they are named in `left`.

    A state machine without a clock or a wait of its own: call `step(now)` at `next_at`, or sooner
    when a process exited, until it returns True. Then `survivors` are the pids that SIGKILL did not
    end. All times are of one clock, the caller's. A caller that ends many trees makes all the
    endings first and steps them afterwards (TREE-5).
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
        left: bool = False,
    ) -> None:
        self.tree = tree
        self.kill_at = now + grace_seconds
        self.left: list[str] = []
        self._leave_until = now + _LEAVING_SECONDS if left and grace_seconds > 0 else 0.0
        self._told: set[tuple[int, int]] = set()
        self._reading: dict[tuple[int, int], float] = {}  # readers → when they are told, too
        self._names = left and not tree.leads
        self.next_at = now
        self.survivors: list[int] = []
        self.obstacle = ""  # why nothing can be known of the tree now (TREE-6)
        self.first_exited = False
        self._forest = forest
        self._kill_limit_seconds = kill_limit_seconds
        self._signaller = signaller
        self._warned = grace_seconds <= 0
        self._first_warned = self._warned
        self._kill_began: float | None = None
        self._blind_seconds = 0.0
        self._poll_seconds = KILL_POLL_SECONDS
        self._signalled: set[tuple[int, int]] = set()
        self._counted = 0
        forest.want_new_scan(tree)

    def hasten(self, kill_at: float) -> None:
        """Bring the KILL forward; a later time changes nothing."""
        if kill_at < self.kill_at:
            self.kill_at = kill_at
            self.next_at = min(self.next_at, kill_at)

    def take_first_exit(self) -> None:
        """Note that the tree's first process was reaped; the next step is due at once."""
        self.first_exited = True
        self.next_at = 0.0

    def step(self, now: float) -> bool:
        """Do the work that is due. Returns True when the tree is gone, or its survivors are given
        up."""
        try:
            over = self._kill(now) if now >= self.kill_at else self._wait(now)
        except OSError as error:
            self._go_on_blindly(now, error)
            return False
        self.obstacle = ""
        return over

    def _wait(self, now: float) -> bool:
        if not (self._first_warned or self.first_exited):
            # A stopped process receives a TERM only once it is continued.
            for number in (signal.SIGTERM, signal.SIGCONT):
                self._signaller.send_blindly(self.tree, number, alone=True)
            self._first_warned = True
            self._warned = self.tree.leads  # the first process passes the TERM on by itself
            self.next_at = min(self.kill_at, now + GRACE_POLL_SECONDS)
            return False
        if self.first_exited and self._forest.is_surely_empty(self.tree):
            return True
        if now < self._leave_until:
            if self._forest.find_living(self.tree).gone:
                return True
            self.next_at = min(self.kill_at, now + GRACE_POLL_SECONDS)
            return False
        if not self._warned:
            self._warn_others(now)
            if not self._warned and not self.first_exited:
                self.next_at = min(self.kill_at, now + _KILL_POLL_MAX_SECONDS)
                return False
        elif self.first_exited and self._forest.find_living(self.tree).gone:
            return True
        self.next_at = (
            min(self.kill_at, now + GRACE_POLL_SECONDS) if self.first_exited else self.kill_at
        )
        return False

    def _kill(self, now: float) -> bool:
        if self._kill_began is None:
            self._kill_began = now
            self.tree.shoot = self._shoot
        elif self.first_exited and self._forest.is_surely_empty(self.tree):
            return True
        group = self.tree.group
        if group is not None:
            self._signaller.kill_group(group)
        found = self._forest.find_living(self.tree)
        killing_seconds = now - self._kill_began - self._blind_seconds
        if killing_seconds >= self._kill_limit_seconds and not found.gone:
            self._forest.want_new_scan(self.tree)  # some may have died since the last
            found = self._forest.find_living(self.tree)
            self.survivors = sorted(entry.pid for entry in found.members) or found.unclear
            self.tree.shoot = None
            return True
        if found.gone:
            return True
        for entry in found.members:
            self._shoot(entry)
        self._forest.chase(self.tree)
        if len(self._signalled) > self._counted:
            self._counted = len(self._signalled)
            self._poll_seconds = KILL_POLL_SECONDS
        self.next_at = now + self._poll_seconds
        self._poll_seconds = min(self._poll_seconds * 1.5, _KILL_POLL_MAX_SECONDS)
        return False

    def _warn_others(self, now: float) -> None:
        """Send TERM to all processes that have had none. Processes that only read the output of
        others get it later, where the end of those did not end them (PIPE-1)."""
        members = self._forest.find_living(self.tree).members
        firsts = (self.tree.pid, self.tree.program_pid)  # a keeper passes its TERM on
        if self._first_warned:
            self._told.update(e.identity for e in members if e.pid in firsts)
        readers = find_readers([entry.pid for entry in members])
        self._warned = True
        for entry in members:
            if entry.identity in self._told or (self.tree.leads and entry.pid not in firsts):
                continue
            if entry.pid in readers:
                self._reading[entry.identity] = now + _END_OF_INPUT_SECONDS
            if self._reading.get(entry.identity, 0.0) > now:
                self._warned = False
                continue
            self._told.add(entry.identity)
            self._note_left(entry)
            self._signaller.send(entry, signal.SIGTERM)
            self._signaller.send(entry, signal.SIGCONT)

    def _note_left(self, entry: ProcessEntry) -> None:
        if self._names and len(self.left) < _MAX_NAMES:
            name = process_table.read_name(entry.pid)
            self.left += [name] if name else []

    def _shoot(self, entry: ProcessEntry) -> None:
        self._signaller.send(entry, signal.SIGKILL)
        self._signalled.add(entry.identity)

    def _go_on_blindly(self, now: float, error: OSError) -> None:
        """Signal without reading the process table, because it cannot be read (TREE-6). Time in
        which nothing could be read does not count towards the kill limit."""
        self.obstacle = str(error)
        if now >= self.kill_at:
            self._signaller.send_blindly(self.tree, signal.SIGKILL, alone=False)
            self._blind_seconds += _BLIND_POLL_SECONDS
            self.next_at = now + _BLIND_POLL_SECONDS
            return
        if not self._warned:
            self._warned = self._first_warned = True
            for number in (signal.SIGTERM, signal.SIGCONT):
                self._signaller.send_blindly(self.tree, number, alone=self.tree.leads)
        self.next_at = min(self.kill_at, now + _BLIND_POLL_SECONDS)
