"""One tree being ended: TERM, a grace, KILL. Its members and its end are found by `process.tree`
(TREE-1 to TREE-6)."""

import contextlib
import os
import signal

from holdfast.process import table as process_table
from holdfast.process.endings.teller import Teller
from holdfast.process.groups import TaskGroup
from holdfast.process.spawn import signal_group
from holdfast.process.table import ProcessEntry
from holdfast.process.telling import HALF, Tell
from holdfast.process.tree import Forest, Tree

KILL_POLL_SECONDS = 0.005
GRACE_POLL_SECONDS = 0.02
_KILL_POLL_MAX_SECONDS = 0.1
_BLIND_POLL_SECONDS = 0.1
_LEAVING_SECONDS = 0.1  # helpers (a resource tracker) need a moment to end
_TELL_POLL_SECONDS = 0.06  # then a process has shown what it does with its TERM; grows
_TELL_POLL_MAX_SECONDS = 0.5
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

    The first process gets its TERM at once. `Teller` says when the others get it, from
    `GRACE_POLL_SECONDS` later on, because finding them takes milliseconds and most programs leave
    none; tell: "tree" has all of them told then. Processes left after the first one's exit (`left`)
    have `_LEAVING_SECONDS` to end by themselves; then they are all told, and named in `left`.

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
        tell: Tell = "main",
    ) -> None:
        self.tree = tree
        self._began, self.kill_at = now, now + grace_seconds
        self.left: list[str] = []
        self._leave_until = now + _LEAVING_SECONDS if left and grace_seconds > 0 else 0.0
        self._teller: Teller | None = None
        self._tell: Tell = "tree" if left else tell
        self._tell_poll_seconds = _TELL_POLL_SECONDS
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
        """Note that the tree's first process was reaped, which makes the next step due at once."""
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
            self._teller = self._make_teller()
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
        elif self.first_exited and self._forest.find_living(self.tree).gone:
            return True
        self.next_at = min(self.kill_at, self._find_next_look(now))
        return False

    def _find_next_look(self, now: float) -> float:
        if self.first_exited:
            return now + GRACE_POLL_SECONDS
        if self._warned:
            return self.kill_at
        pause = self._tell_poll_seconds
        self._tell_poll_seconds = min(pause * 1.5, _TELL_POLL_MAX_SECONDS)
        return min(now + pause, self._half_at) if now < self._half_at else now + pause

    @property
    def _half_at(self) -> float:
        return self._began + HALF * (self.kill_at - self._began)

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
        """Send TERM to the processes that are to have it now (`telling`)."""
        teller = self._teller = self._teller or self._make_teller()
        members = self._forest.find_living(self.tree).members
        if self.tree.leads:
            firsts = (self.tree.pid, self.tree.program_pid)
            members = [entry for entry in members if entry.pid in firsts]
        for entry in teller.choose(members, now, half_over=now >= self._half_at):
            self._note_left(entry)
            self._signaller.send(entry, signal.SIGTERM)
            self._signaller.send(entry, signal.SIGCONT)
        self._warned = teller.settled

    def _make_teller(self) -> Teller:
        keeper = {self.tree.pid} - {self.tree.program_pid}  # it passes its TERM on
        return Teller(self.tree.program_pid, self._tell, unseen=keeper)

    def _note_left(self, entry: ProcessEntry) -> None:
        wanted = self._names and len(self.left) < _MAX_NAMES
        if wanted and not process_table.is_helper(entry.pid):
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
