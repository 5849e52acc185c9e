"""The guardian's tasks: launched, extended, stopped, ended, remembered until acknowledged.

GUARD-1  A key is launched once. A repeat is answered with what is known; a key acknowledged before
         is refused.
GUARD-2  A task is ended at its deadline whether or not an agent lives. Deadlines only ever move
         later.
GUARD-3  `TaskEnded` is said when the whole tree is gone, or what is left of it survived SIGKILL for the
         kill limit.
GUARD-4  `TaskEnded` is kept, and is in every snapshot, until the agent acknowledges it.

What a first process leaves running when it exits gets TERM at once and KILL
`LEFTOVER_GRACE_SECONDS` later: the work is over, so there is nothing to save, but a server in the
background may want to close its files.
"""

from __future__ import annotations

import heapq
import math
import signal
from collections.abc import Callable

from holdfast.core.ids import TaskKey
from holdfast.errors import ValidationError
from holdfast.process.ending import Signaller, TreeEnding
from holdfast.process.groups import GroupHome, TaskGroup, count_oom_kills_of_host
from holdfast.process.punch import Punched, punch_file
from holdfast.process.spawn import Child, SpawnRequest, read_start, spawn
from holdfast.process.tree import Forest, Mark, Tree
from holdfast.process.watch import Exit, Watcher
from holdfast.wire.guardian import Answer, LaunchTask, Snapshot, TaskEnded, TaskStarted, TaskStatus

LEFTOVER_GRACE_SECONDS = 2.0
# At 500 launches a second this is half a minute of them; a late repeat comes within milliseconds.
MAX_TOMBSTONES = 16_384
_SCAN_SECONDS = 2.0
_FIRST_SCAN_SECONDS = (
    0.2  # reading all of /proc must not compete with the start of the task it is for
)
_PUNCH_SECONDS = 1.0
_FLOOD_SECONDS = 0.1  # while some log is over its limit: a task can write a gigabyte a second
_TIDY_SECONDS = 0.5
_MAX_SENTENCE = (
    4096  # a program's name may be as long as the kernel allows, and goes into every snapshot
)
# Of one turn, for ending trees. A fork bomb is hunted turn after turn; in between the guardian
# hears, reaps and is watched.
_HUNT_SECONDS = 0.1


class _Task:
    """One task, from its launch to its acknowledgement."""

    __slots__ = (
        "child",
        "deadline",
        "ended",
        "ending",
        "exit",
        "exited_at",
        "grace_seconds",
        "hosts_fault",
        "key",
        "lapsed",
        "log_disk_bytes",
        "oom_kills_before",
        "request",
        "start_error",
        "stderr",
        "stdout",
        "stopped",
        "tree",
    )  # fmt: skip

    def __init__(self, launch: LaunchTask) -> None:
        self.key = launch.key
        self.deadline = launch.deadline
        self.grace_seconds = launch.grace_seconds
        self.log_disk_bytes = launch.log_disk_bytes
        self.stdout = launch.stdout
        self.stderr = launch.stderr
        self.request: SpawnRequest | None = (
            None  # kept only until the program runs: an environment can be large
        )
        self.child: Child | None = None
        self.tree: Tree | None = None
        self.start_error: str | None = None
        self.hosts_fault = False
        self.exit: Exit | None = None
        self.exited_at = 0.0
        self.ending: TreeEnding | None = None
        self.ended: TaskEnded | None = None
        self.stopped = False
        self.lapsed = False
        self.oom_kills_before = 0

    def as_status(self) -> TaskStatus:
        return TaskStatus(
            key=self.key,
            pid=self.child.pid if self.child else 0,
            started_at=self.child.started_at if self.child else 0.0,
            deadline=self.deadline,
            stdout=self.stdout,
            stderr=self.stderr,
            stopping=self.stopped,
            ended=self.ended,
        )


class HostTasks:
    """All tasks of the host. Every time is CLOCK_BOOTTIME, of `read_clock`."""

    def __init__(
        self,
        *,
        forest: Forest,
        watcher: Watcher,
        group_home: GroupHome | None,
        kill_limit_seconds: float,
        oom_score_adj: int | None,
        descriptor_limit: tuple[int, int] | None,
        read_clock: Callable[[], float],
        signaller: Signaller,
        tell: Callable[[Answer], None],
        note: Callable[..., None],
        watch_start: Callable[[int, Callable[[], None]], None],
        unwatch_start: Callable[[int], None],
    ) -> None:
        self._forest = forest
        self._watcher = watcher
        self._group_home = group_home
        self._kill_limit_seconds = kill_limit_seconds
        self._oom_score_adj = oom_score_adj
        self._descriptor_limit = descriptor_limit
        self._read_clock = read_clock
        self._signaller = signaller
        self._tell = tell
        self._note = note
        self._watch_start = watch_start
        self._unwatch_start = unwatch_start
        self._tasks: dict[TaskKey, _Task] = {}
        self._by_pid: dict[int, _Task] = {}
        self._endings: dict[TaskKey, _Task] = {}
        self._deadlines: list[tuple[float, TaskKey]] = []
        self._tombstones: dict[TaskKey, None] = {}
        self._full_groups: list[TaskGroup] = []
        self._unheard: list[_Task] = []  # whose start no poll tells, for want of memory
        self._closing = False
        self._said: set[str] = set()
        self._scan_at = self._punch_at = self._tidy_at = 0.0
        self._oom_kills, self._oom_read_at = 0, -1.0

    # ---- what the agent asks

    def launch(self, launch: LaunchTask) -> None:
        """Start a task, or answer for the one that is known (GUARD-1)."""
        known = self._tasks.get(launch.key)
        if known is not None:
            self._answer_known(known)
        elif launch.key in self._tombstones:
            self._tell(
                TaskEnded(
                    key=launch.key,
                    start_error="this task had already ended and its end was acknowledged",
                )
            )
        else:
            task = self._tasks[launch.key] = _Task(launch)
            if self._closing:
                self._refuse(task, "the host is shutting down")
            elif not math.isfinite(launch.deadline):
                task.hosts_fault = True
                self._refuse(task, f"{launch.deadline} is no time at which a lease ends")
            elif launch.deadline <= self._read_clock():
                task.lapsed = True
                self._refuse(task, "its lease had ended before it could be started")
            else:
                self._start(task, launch)

    def extend(self, deadlines: list[tuple[TaskKey, float]]) -> None:
        """Move deadlines later; an earlier one changes nothing (GUARD-2)."""
        for key, deadline in deadlines:
            task = self._tasks.get(key)
            if task is not None and task.deadline < deadline < math.inf:
                task.deadline = deadline

    def stop(self, key: TaskKey, grace_seconds: float) -> None:
        """TERM now, KILL after the grace.

        Repeats act once, a sooner KILL wins, an unknown key is nobody's.
        """
        task = self._tasks.get(key)
        if task is None:
            return
        if task.ended is not None:
            self._tell(task.ended)
            return
        self._end(task, grace_seconds)

    def ack(self, keys: list[TaskKey]) -> None:
        """Forget ends the controller has. A task that still runs is not forgotten, whoever says
        so."""
        for key in keys:
            task = self._tasks.get(key)
            if task is None or task.ended is None:
                continue
            del self._tasks[key]
            if task.tree is not None:
                self._forest.remove(task.tree)
            self._tombstones[key] = None
            if len(self._tombstones) > MAX_TOMBSTONES:
                del self._tombstones[next(iter(self._tombstones))]

    def make_snapshot(self, incarnation: str, number: int) -> Snapshot:
        """Everything held now."""
        return Snapshot(
            incarnation=incarnation,
            number=number,
            tasks=[task.as_status() for task in self._tasks.values()],
        )

    # ---- what the guardian itself asks

    def close(self, *, at_once: bool) -> None:
        """Stop every task, with its own grace or at once; start none from now on."""
        self._closing = True
        for task in list(self._tasks.values()):
            if task.ended is None:
                self._end(task, 0.0 if at_once else task.grace_seconds)

    @property
    def count_running(self) -> int:
        """Tasks whose end is not settled."""
        return sum(1 for task in self._tasks.values() if task.ended is None)

    @property
    def count_held(self) -> int:
        """Tasks not acknowledged yet, running or ended."""
        return len(self._tasks)

    def take_exit(self, found: Exit) -> None:
        """Take an exit: of a task's first process, or of any other, which is only noted."""
        self._forest.note_exit(found.pid)
        task = self._by_pid.pop(found.pid, None)
        if task is None:
            return
        task.exit = found
        task.exited_at = self._read_clock()
        self._read_start(task)
        if task.ended is not None:
            return  # given up as unkillable; it died after all
        if task.start_error is not None:
            self._refuse(task, task.start_error)
            return
        assert task.tree is not None
        if task.ending is not None:
            task.ending.first_exited = True
            task.ending.next_at = 0.0
        elif self._forest.is_surely_empty(task.tree):
            self._finish(task)
        else:
            self._begin_ending(task, LEFTOVER_GRACE_SECONDS)

    def turn(self, now: float) -> float:
        """Do everything that is due; return when to be called again (infinity: when something
        happens)."""
        self._step_endings(now)
        for task in self._unheard:
            self._read_start(task)
        self._unheard = [task for task in self._unheard if task.request is not None]
        if self._by_pid:
            if now >= self._scan_at and any(
                t.tree and t.tree.group is None for t in self._by_pid.values()
            ):
                # Without groups a runaway is only known if it was seen while its parents lived.
                self._scan()
                self._scan_at = now + _SCAN_SECONDS
            if now >= self._punch_at:
                flooding = [task for task in self._by_pid.values() if self._punch_logs(task)]
                self._punch_at = now + (_FLOOD_SECONDS if flooding else _PUNCH_SECONDS)
        if self._full_groups and now >= self._tidy_at:
            # A group can be busy for a moment after its last member was reaped, or for ever under
            # an unkillable one.
            self._full_groups = [group for group in self._full_groups if not group.remove()]
            self._tidy_at = now + _TIDY_SECONDS
        due = [task.ending.next_at for task in self._endings.values() if task.ending is not None]
        if self._deadlines:
            due.append(self._deadlines[0][0])
        if self._by_pid:
            due.append(self._punch_at)
        if self._full_groups:
            due.append(self._tidy_at)
        if self._unheard:
            due.append(now + _TIDY_SECONDS)
        return min(due, default=float("inf"))

    # ---- how

    def _start(self, task: _Task, launch: LaunchTask) -> None:
        mark = Mark(str(launch.key), self._forest.host)
        group = (
            self._make_group(launch.memory_bytes) if launch.contain or launch.memory_bytes else None
        )
        brand = self._forest.make_brand()
        request = SpawnRequest(
            argv=tuple(launch.argv),
            env={**launch.env, **mark.as_env()},
            cwd=launch.cwd,
            stdout=launch.stdout,
            stderr=launch.stderr,
            group_procs=group.procs_path if group else None,
            oom_score_adj=self._oom_score_adj,
            descriptor_limit=self._descriptor_limit,
            brand=brand,
        )
        try:
            child = spawn(request)
        except (ValidationError, OSError) as error:
            if group is not None:
                group.remove()
            task.hosts_fault = isinstance(error, OSError)
            self._refuse(
                task, f"no process can be made: {error}" if task.hosts_fault else str(error)
            )
            return
        task.request, task.child = request, child
        task.oom_kills_before = self._read_oom_kills()
        task.tree = Tree(mark, child, group, leads=launch.leads, brand=brand)
        self._forest.add(task.tree)
        if not self._by_pid:
            self._scan_at = max(self._scan_at, child.started_at + _FIRST_SCAN_SECONDS)
        self._by_pid[child.pid] = task
        self._watcher.watch_child(child.pid, child.pidfd)
        heapq.heappush(self._deadlines, (task.deadline, task.key))
        try:
            self._watch_start(child.error_fd, lambda: self._read_start(task))
        except OSError:
            self._unheard.append(task)

    def _make_group(self, memory_bytes: int) -> TaskGroup | None:
        home = self._group_home
        if memory_bytes and (home is None or not home.memory):
            self._say_once(
                "memory limits are not enforced: no memory control group can be made here"
            )
        if home is None:
            return None
        try:
            group = home.make_group()
        except OSError as error:
            self._say_once(f"no control group could be made: {error}")
            return None
        if memory_bytes and home.memory:
            try:
                group.set_limit(memory_bytes)
            except OSError as error:
                self._say_once(f"a memory limit was refused: {error}")
        return group

    def _read_oom_kills(self) -> int:
        """The kernel's count, read at most once a second: a burst of launches need not read it each
        time."""
        now = self._read_clock()
        if now >= self._oom_read_at + 1.0:
            self._oom_kills, self._oom_read_at = count_oom_kills_of_host(), now
        return self._oom_kills

    def _read_start(self, task: _Task) -> None:
        """The exec happened, failed, or the child died before it."""
        child, request = task.child, task.request
        if child is None or request is None:
            return
        error_fd = child.error_fd
        sentence = read_start(child, request)
        if sentence is None:
            return
        self._unwatch_start(error_fd)
        task.request = None
        if sentence:
            task.hosts_fault = child.hosts_fault
            task.start_error = sentence[
                :_MAX_SENTENCE
            ]  # said when the child is reaped, which is now
        else:
            self._tell(TaskStarted(key=task.key, pid=child.pid, started_at=child.started_at))

    def _refuse(self, task: _Task, sentence: str) -> None:
        """Settle a task that never became its program."""
        if task.tree is not None:
            self._forest.remove(task.tree)
            self._drop_group(task.tree.group)
        self._endings.pop(task.key, None)
        task.ending = None
        task.ended = TaskEnded(
            key=task.key,
            start_error=sentence[:_MAX_SENTENCE],
            hosts_fault=task.hosts_fault,
            stopped=task.stopped,
            lapsed=task.lapsed,
        )
        self._tell(task.ended)

    def _answer_known(self, task: _Task) -> None:
        if task.ended is not None:
            self._tell(task.ended)
        elif task.child is not None and task.request is None:
            self._tell(
                TaskStarted(key=task.key, pid=task.child.pid, started_at=task.child.started_at)
            )

    def _end(self, task: _Task, grace_seconds: float) -> None:
        """Begin to end it. The turn does the rest, for all that are ended together (TREE-5)."""
        if not 0.0 <= grace_seconds < math.inf:
            grace_seconds = 0.0  # of what is no time none is given, or it would never be over
        if task.exit is None:
            task.stopped = True
        if task.ending is None:
            self._begin_ending(task, grace_seconds)
        else:
            task.ending.hasten(self._read_clock() + grace_seconds)

    def _begin_ending(self, task: _Task, grace_seconds: float) -> None:
        assert task.tree is not None
        task.ending = TreeEnding(
            task.tree,
            self._forest,
            now=self._read_clock(),
            grace_seconds=grace_seconds,
            kill_limit_seconds=self._kill_limit_seconds,
            signaller=self._signaller,
        )
        task.ending.first_exited = task.exit is not None
        self._endings[task.key] = task

    def _step_endings(self, now: float) -> None:
        """Step what is due, who waits longest first, for a bounded time; the rest is due again at
        once."""
        due = [
            (task.ending.next_at, task)
            for task in self._endings.values()
            if task.ending is not None
        ]
        self._forest.begin_turn(_HUNT_SECONDS)
        for next_at, task in sorted(due, key=lambda pair: pair[0]):
            if next_at > now:
                break
            if task.ending is not None:
                task.ending.next_at = (
                    now + _TIDY_SECONDS
                )  # should this step fail (GUARD-7), the others come first
            self._step_ending(task, now)
            if self._forest.turn_is_over:
                break

    def _scan(self) -> None:
        try:
            self._forest.find_members()
        except OSError as error:
            self._say_once(
                f"the process table cannot be read, so nothing is concluded from it: {error}"
            )

    def _step_ending(self, task: _Task, now: float) -> None:
        assert task.ending is not None
        over = task.ending.step(now)
        if task.ending.obstacle:
            self._say_once(
                "a task that is being ended cannot be looked for; its end is not said: "
                f"{task.ending.obstacle}"
            )
        if over:
            # A dead first process is only over when it was reaped: its exit code is the task's.
            if task.exit is None and not task.ending.survivors:
                task.ending.next_at = now + 0.05
                return
            self._finish(task)

    def _finish(self, task: _Task) -> None:
        """The tree is gone, or given up: say so and keep saying it until acknowledged."""
        assert task.child is not None
        assert task.tree is not None
        found, group = task.exit, task.tree.group
        survivors = task.ending.survivors if task.ending is not None else []
        counted = group is not None and self._group_home is not None and self._group_home.memory
        peak_bytes = group.read_peak_bytes() if group is not None and counted else 0
        task.ended = TaskEnded(
            key=task.key,
            exit_code=found.exit_code if found else None,
            signal=found.signal if found else None,
            oom=group.count_oom_kills() > 0
            if group is not None and counted
            else self._guess_oom(task),
            stopped=task.stopped,
            lapsed=task.lapsed,
            unkillable=bool(survivors),
            survivors=survivors,
            runtime_seconds=(task.exited_at or self._read_clock()) - task.child.started_at,
            max_memory_bytes=peak_bytes or (found.max_rss_bytes if found else 0),
        )
        self._tell(task.ended)
        self._punch_logs(task)  # what it wrote last stays on disk for as long as its logs are kept
        task.ending = None
        self._endings.pop(task.key, None)
        self._drop_group(group)
        if not survivors:
            self._forest.remove(task.tree)

    def _guess_oom(self, task: _Task) -> bool:
        """Without a group that counts: a SIGKILL nobody here sent, while the kernel's own count of
        OOM kills rose."""
        if task.exit is None or task.exit.signal != signal.SIGKILL or task.stopped:
            return False
        return count_oom_kills_of_host() > task.oom_kills_before

    def _drop_group(self, group: TaskGroup | None) -> None:
        if group is not None and not group.remove():
            self._full_groups.append(group)

    def end_lapsed(self) -> None:
        """GUARD-2: KILL what is past its deadline. An entry whose deadline was moved since goes
        back in."""
        now = self._read_clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, key = heapq.heappop(self._deadlines)
            task = self._tasks.get(key)
            if task is None or task.ended is not None:
                continue
            if task.deadline > now:
                heapq.heappush(self._deadlines, (task.deadline, key))
                continue
            task.lapsed = task.exit is None
            self._note(
                "a task's lease ended without word from the controller; it is killed", task=str(key)
            )
            self._end(task, 0.0)

    def _punch_logs(self, task: _Task) -> bool:
        """Bring both streams under the limit. True where one was over it."""
        found = [punch_file(path, task.log_disk_bytes) for path in (task.stdout, task.stderr)]
        if Punched.UNSUPPORTED in found:
            self._say_once(
                f"logs are not kept under their limit: no holes can be made where {task.stdout} "
                "lies"
            )
        return Punched.PUNCHED in found

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said and len(self._said) < 1000:
            self._said.add(sentence)
            self._note(sentence)
