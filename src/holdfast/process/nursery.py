"""Programs from their start to the end of their whole trees: the common mechanism for a guardian's
tasks, its agent, and a warden's processes.

Single-threaded and without a wait of its own: the owner's poll loop calls `collect` and `turn`.
Processes that the first process leaves running when it exits have a moment to end by themselves,
then TERM, and KILL `LEFTOVER_GRACE_SECONDS` later. The work is over, so there is nothing to save,
but a server in the background may want to close its files.

NURSERY-1  A program that was forked is known until its end was reported. A step that fails after
           the fork kills the program, which ends as one that could not be started.
NURSERY-2  The end is reported when the whole tree is gone, or its last processes survived SIGKILL
           for the kill limit, and its output is in its files (LOGS-6). The report is repeated where
           the owner's callback fails.
NURSERY-3  A mishap with one program is noted and keeps no other from its turn. The hunt for trees
           takes a bounded part of a turn, because between hunts the owner must receive orders,
           reap, and show that it lives.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from functools import partial

import msgspec

from holdfast.process.endings.ending import Signaller, TreeEnding
from holdfast.process.groups import TaskGroup
from holdfast.process.loop import Mishaps, Poller
from holdfast.process.output.writer import OutputHome, Streams
from holdfast.process.spawn import SPARE_DESCRIPTORS, Child, SpawnRequest, read_start, spawn
from holdfast.process.syscalls import read_boottime
from holdfast.process.telling import Tell
from holdfast.process.tree import Forest, Mark, Tree
from holdfast.process.watch import MAX_EXITS, Exit, Watcher
from holdfast.wire.guardian import StreamEnd

LEFTOVER_GRACE_SECONDS = 2.0
_HUNT_SECONDS = 0.1  # the part of one turn that ending trees may take
_SCAN_SECONDS = 2.0
FIRST_SCAN_SECONDS = 0.2  # reading /proc must not compete with the start of the program
_RETRY_SECONDS = 0.5  # after a failed step: a mishap, no memory, an unreadable table
_REAP_SECONDS = 0.05  # between looks for the status of a first process that is dead
_PORTIONS_PER_TURN = 16  # of exits: some ten milliseconds' worth


class ProgramEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The callbacks for the events of one program.

    running: called once the exec succeeded. exited: called once the first process was reaped.
    ended: called once the program has failed to start (`ProgramRun.start_error`), or its tree is
    over (NURSERY-2).
    """

    ended: Callable[[ProgramRun], None]
    running: Callable[[ProgramRun], None] | None = None
    exited: Callable[[ProgramRun], None] | None = None


class ProgramRun:
    """One program: its first process, how the start went, its exit, and the end of its tree."""

    def __init__(
        self, child: Child, request: SpawnRequest, tree: Tree, events: ProgramEvents, grace: float
    ) -> None:
        self.child = child
        self.tree = tree
        self.events = events
        self.grace_seconds = grace  # for the processes that the program leaves running
        # Kept only until the start is decided, because an environment can be large.
        self.request: SpawnRequest | None = request
        self.start_error: str | None = None
        self.exit: Exit | None = None
        self.exited_at = 0.0
        self.ending: TreeEnding | None = None
        self.streams: Streams | None = None
        self.tell: Tell = "main"
        self.over = False

    @property
    def pid(self) -> int:
        """Return the pid of the first process. Once `exit` is set, the number may be another
        process's."""
        return self.child.pid

    @property
    def runs(self) -> bool:
        """Return whether the exec succeeded, as far as is known."""
        return self.request is None and self.start_error is None

    @property
    def output(self) -> dict[str, StreamEnd]:
        """Return how each output file of the program ended, by file, once the program is over;
        nothing for a program that held its files itself."""
        ends = self.streams.ends if self.streams is not None else None
        return dict(zip(self.streams.paths, ends, strict=True)) if self.streams and ends else {}

    @property
    def left_running(self) -> list[str]:
        """Return the names of the processes that the first process left running, and that were
        ended."""
        return self.ending.left if self.ending is not None else []

    @property
    def survivors(self) -> list[int]:
        """Return the pids of the tree that SIGKILL did not end."""
        return self.ending.survivors if self.ending is not None else []


class Nursery:
    """All programs of one sub-reaper. Every time is of `read_clock`.

    host: the mark that their processes carry. The poller's loop must turn once a second while a
    program lives, because orphans wake nothing (WATCH-2).
    """

    def __init__(
        self,
        host: str,
        poller: Poller,
        mishaps: Mishaps,
        *,
        kill_limit_seconds: float,
        signaller: Signaller | None = None,
        read_clock: Callable[[], float] = read_boottime,
    ) -> None:
        self._poller = poller
        self._mishaps = mishaps
        self._kill_limit_seconds = kill_limit_seconds
        self._signaller = signaller or Signaller()
        self._read_clock = read_clock
        self._watcher = Watcher()
        self._forest = Forest(host)
        self._output = OutputHome(poller, mishaps, self._take_output_end, self._forest.spare)
        self._draining: dict[
            int, ProgramRun
        ] = {}  # trees that are over, by the name of their pipes
        self._by_pid: dict[int, ProgramRun] = {}  # until the first process is reaped
        self._endings: dict[ProgramRun, TreeEnding] = {}
        self._undecided: list[ProgramRun] = []  # starts that no poll tells, for want of memory
        self._unsaid: list[ProgramRun] = []  # ends that are not heard yet
        self._scan_at = 0.0
        poller.handle(self._watcher.fileno(), lambda _: None)  # being woken is all

    @property
    def busy(self) -> bool:
        """Return whether any program is not over yet."""
        return bool(self._endings or self._unsaid or self._draining) or any(
            not run.over for run in self._by_pid.values()
        )

    # ---- what the owner asks

    def start(
        self,
        request: SpawnRequest,
        task: str,
        events: ProgramEvents,
        *,
        group: TaskGroup | None = None,
        marked: bool = True,
        leads: bool = False,
        tell: Tell = "main",
        trusted: bool = False,
        leftover_grace_seconds: float = LEFTOVER_GRACE_SECONDS,
        spare_descriptors: int = SPARE_DESCRIPTORS,
    ) -> ProgramRun:
        """Fork a program (NURSERY-1); its events come from later calls.

        task: the program's mark, used once. marked: True to give the marks and a brand to its
        processes. leads, trusted: see `Tree`. tell: see `TreeEnding`. Raises ValidationError and
        OSError as `spawn` does: nothing was started then.
        """
        mark = Mark(task, self._forest.host)
        brand = None
        if marked:
            brand = self._forest.make_brand()
            env = {**request.env, **mark.as_env()}
            request = msgspec.structs.replace(request, env=env, brand=brand)
        request, streams = self._output.open(request)
        try:
            child = spawn(request, spare_descriptors=spare_descriptors)
        except BaseException:
            if streams is not None:
                streams.close()
            raise
        tree = Tree(mark, child, group, trusted=trusted, leads=leads, brand=brand)
        run = ProgramRun(child, request, tree, events, leftover_grace_seconds)
        run.streams, run.tell = streams, tell
        self._by_pid[child.pid] = run
        if not self._mishaps.survive(partial(self._take_in, run), False):
            run.start_error, child.hosts_fault = "its parent failed to take it in", True
            os.kill(child.pid, signal.SIGKILL)
        if streams is not None:
            self._mishaps.survive(partial(self._output.follow, streams), None)
        return run

    def end(self, run: ProgramRun, grace_seconds: float) -> None:
        """Begin to end a tree: TERM, KILL after the grace; a sooner KILL wins.

        The next turn sends the signals, for all trees that are ended together (TREE-5).
        """
        if run.over:
            return
        grace_seconds = max(0.0, grace_seconds)  # 0 also for NaN
        if run.ending is None:
            self._begin_ending(run, grace_seconds)
        else:
            run.ending.hasten(self._read_clock() + grace_seconds)

    def forget(self, run: ProgramRun) -> None:
        """Forget a tree that is over. A tree with survivors is forgotten once these are gone."""
        self._forest.remove(run.tree)

    def collect(self) -> bool:
        """Reap children that ended, orphans included (WATCH-2). Returns True where there may be
        more ends that wake no loop: those of orphans (WATCH-3).

        Zombies that pile up slow every search for a runaway, so a flood of them is reaped in
        several portions.
        """
        exits: list[Exit] = []
        for _ in range(_PORTIONS_PER_TURN):
            portion = self._watcher.collect()
            exits += portion
            if len(portion) < MAX_EXITS:
                break
        started_here = sum(found.pid in self._by_pid for found in exits)
        for found in exits:
            self._mishaps.survive(partial(self._take_exit, found), None)
        return started_here < len(exits)

    def turn(self, now: float) -> float:
        """Do all the work that is due; return the instant at which to call this again."""
        self._step_endings(now)
        undecided, self._undecided = self._undecided, []
        for run in undecided:
            self._mishaps.survive(partial(self._read_start, run), None)
        for run in list(self._unsaid):
            self._say_end(run)
        if now >= self._scan_at and any(map(_may_hide, self._by_pid.values())):
            self._scan(now)
        due = [ending.next_at for ending in self._endings.values()]
        due.append(self._output.turn(now))
        if self._undecided or self._unsaid:
            due.append(now + _RETRY_SECONDS)
        return min(due, default=math.inf)

    def close(self) -> None:
        """Close the descriptors. Children go on, unwatched."""
        self._output.close()
        self._poller.drop(self._watcher.fileno())
        self._watcher.close()

    # ---- the start

    def _take_in(self, run: ProgramRun) -> bool:
        if not any(_may_hide(other) for other in self._by_pid.values() if other is not run):
            self._scan_at = max(self._scan_at, run.child.started_at + FIRST_SCAN_SECONDS)
        self._forest.add(run.tree)
        kept = run.child.keeper is not None
        self._watcher.watch_child(run.pid, run.child.pidfd, keeper=kept)
        self._watch_start(run)
        return True

    def _watch_start(self, run: ProgramRun) -> None:
        try:
            self._poller.handle(run.child.error_fd, lambda _: self._read_start(run))
        except OSError:
            self._undecided.append(run)

    def _read_start(self, run: ProgramRun) -> None:
        """Read how a program's start went: the exec happened, the exec failed, or the child died
        before its exec."""
        if run.request is None:
            return
        self._poller.drop(run.child.error_fd)  # EPOLL-1: `read_start` closes it
        sentence = read_start(run.child, run.request)
        if sentence is None:
            self._watch_start(run)
            return
        run.request = None
        if sentence:
            run.start_error = sentence  # reported when the child is reaped, which is now
        elif run.start_error is None:
            self._say(run.events.running, run)

    # ---- the end

    def _take_exit(self, found: Exit) -> None:
        self._forest.note_exit(found.pid)
        if self._output.take_exit(found.pid, self._read_clock()):
            return
        run = self._by_pid.pop(found.pid, None)
        if run is None:
            return
        run.exit, run.exited_at = found, self._read_clock()
        self._read_start(run)
        self._say(run.events.exited, run)
        if run.over:
            return  # given up as unkillable; it died after all
        if run.start_error is not None:
            self._settle(run)
        elif run.ending is not None:
            run.ending.take_first_exit()
        elif self._forest.is_surely_empty(run.tree):
            self._settle(run)
        else:
            self._begin_ending(run, run.grace_seconds, left=True)

    def _begin_ending(self, run: ProgramRun, grace_seconds: float, *, left: bool = False) -> None:
        ending = run.ending = self._endings[run] = TreeEnding(
            run.tree,
            self._forest,
            now=self._read_clock(),
            grace_seconds=grace_seconds,
            kill_limit_seconds=self._kill_limit_seconds,
            signaller=self._signaller,
            left=left,
            tell=run.tell,
        )
        if run.exit is not None:
            ending.take_first_exit()

    def _step_endings(self, now: float) -> None:
        """Step the endings that are due, the oldest first, for a bounded time (NURSERY-3)."""
        due = [item for item in self._endings.items() if item[1].next_at <= now]
        self._forest.begin_turn(_HUNT_SECONDS)
        for run, ending in sorted(due, key=lambda item: item[1].next_at):
            self._mishaps.survive(partial(self._step, run, ending, now), None)
            if self._forest.turn_is_over:
                break

    def _step(self, run: ProgramRun, ending: TreeEnding, now: float) -> None:
        ending.next_at = now + _RETRY_SECONDS  # should this step fail, the others come first
        over = ending.step(now)
        if ending.obstacle:
            self._mishaps.say_once(
                "a tree that is being ended cannot be looked for, so its end is not said: "
                f"{ending.obstacle}"
            )
        if over and run.exit is None and not ending.survivors:
            ending.next_at = now + _REAP_SECONDS  # its exit code is still to be read
        elif over:
            self._settle(run)

    def _settle(self, run: ProgramRun) -> None:
        self._endings.pop(run, None)
        if run.streams is not None and run.streams.ends is None:
            if run.streams.name not in self._draining:
                self._draining[run.streams.name] = run
                self._output.finish(run.streams, self._read_clock())
            return
        run.over = True
        if not run.survivors:
            self._forest.remove(run.tree)
        self._unsaid.append(run)
        self._say_end(run)

    def _take_output_end(self, streams: Streams) -> None:
        run = self._draining.pop(streams.name, None)
        if run is not None:
            self._settle(run)

    def _say_end(self, run: ProgramRun) -> None:
        if self._say(run.events.ended, run):
            self._unsaid.remove(run)

    def _say(self, hear: Callable[[ProgramRun], None] | None, run: ProgramRun) -> bool:
        """Call a callback of the owner. Returns False where it raised."""
        if hear is None:
            return True
        mishaps = self._mishaps.count
        self._mishaps.survive(partial(hear, run), None)
        return self._mishaps.count == mishaps

    def _scan(self, now: float) -> None:
        """Scan all processes, because a runaway without a group is recognised only if it was seen
        while its parents lived."""
        self._scan_at = now + _SCAN_SECONDS
        try:
            self._forest.find_members()
        except OSError as error:
            self._scan_at = now + _RETRY_SECONDS
            self._mishaps.say_once(
                f"the process table cannot be read, so nothing is concluded from it: {error}"
            )


def _may_hide(run: ProgramRun) -> bool:
    """Return whether the program's descendants can escape notice: no group holds them, and the
    program is not Holdfast's own."""
    return run.tree.group is None and not run.tree.trusted
