"""Launch, extend, stop and end the guardian's tasks, and remember them until acknowledged.

GUARD-1  A key is launched once. A repeat is answered with the task's start or end; a key whose end
         was acknowledged is refused.
GUARD-2  A task is ended at its deadline whether or not an agent lives. Deadlines only ever move
         later.
GUARD-3  `TaskEnded` is sent when all processes of the task are gone or given up (NURSERY-2).
GUARD-4  `TaskEnded` is kept, and is in every snapshot, until the agent acknowledges it.
GUARD-9  A task that dies of the signal that ends the host counts as stopped with the host, because
         scancel, a service manager and killall signal all processes at once, in any order. The
         report of an end that may come of such a signal waits a second for the guardian's own
         signal.
"""

import heapq
import math
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.agent.guardian.limits import make_limited_group
from holdfast.agent.guardian.log_size_limit import LogSizeOutcome, limit_log_size
from holdfast.agent.guardian.sessions import GuardianSessions, TaskPlace
from holdfast.bounds import MAX_FIGURE
from holdfast.core.ids import TaskKey
from holdfast.errors import ValidationError
from holdfast.process.groups import GroupHome, TaskGroup
from holdfast.process.keeper import Keepers, Slot
from holdfast.process.loop import Mishaps
from holdfast.process.nursery import Nursery, ProgramEvents, ProgramRun
from holdfast.process.spawn import SpawnRequest
from holdfast.process.watch import Exit
from holdfast.wire.guardian import (
    Answer,
    LaunchTask,
    Snapshot,
    StreamEnd,
    TaskEnded,
    TaskStarted,
    TaskStatus,
)

MAX_TOMBSTONES = (
    16_384  # half a minute of keys at 500 launches a second; repeats come within milliseconds
)
_PUNCH_SECONDS = 1.0
_FLOOD_SECONDS = 0.1  # if a log is over its limit: a task can write a gigabyte a second
_TIDY_SECONDS = 0.5
# How long before the guardian's own signal a task may end and still count as ended by that signal:
# if it died of such a signal, and if it ended in the same turn in another way.
_TOLD_SECONDS = 1.0
_SAME_TURN_SECONDS = 0.02
_TOLD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STALL_SECONDS = 2.5  # more than twice the longest wait of a guardian with tasks
# A program's name may be as long as the kernel allows, and its error goes into every snapshot.
_MAX_SENTENCE = 4096


class _Task:
    """One task, from its launch to its acknowledgement."""

    __slots__ = (
        "deadline", "ended", "grace_seconds", "group", "keeper", "key", "lapsed", "log_disk_bytes",
        "place", "run", "stderr", "stdout", "stopped",
    )  # fmt: skip

    def __init__(self, launch: LaunchTask) -> None:
        self.key = launch.key
        self.deadline = launch.deadline
        self.grace_seconds = launch.grace_seconds
        self.log_disk_bytes = launch.log_disk_bytes
        self.stdout = launch.stdout
        self.stderr = launch.stderr
        self.run: ProgramRun | None = None
        self.group: TaskGroup | None = None
        self.keeper: Slot | None = None
        self.ended: TaskEnded | None = None
        self.stopped = False
        self.lapsed = False
        self.place: tuple[dict[str, str], str, int] = launch.env, launch.cwd, launch.memory_bytes

    def as_status(self) -> TaskStatus:
        return TaskStatus(
            key=self.key,
            pid=self.run.child.program_pid if self.run else 0,
            started_at=self.run.child.started_at if self.run else 0.0,
            deadline=min(MAX_FIGURE, max(-MAX_FIGURE, self.deadline)),  # in this order: of NaN, too
            stdout=self.stdout,
            stderr=self.stderr,
            stopping=self.stopped,
            ended=self.ended,
        )


class HostTasks:
    """Holds all tasks of the host. Every instant is CLOCK_BOOTTIME, read by `read_clock`.

    tell: sends an answer to the agent. note: writes a sentence into the journal. look: reads the
    signals that came, and so calls `close` if this guardian was told to end.
    """

    def __init__(
        self,
        *,
        nursery: Nursery,
        mishaps: Mishaps,
        group_home: GroupHome | None,
        oom_score_adj: int | None,
        descriptor_limit: tuple[int, int] | None,
        read_clock: Callable[[], float],
        tell: Callable[[Answer], None],
        note: Callable[..., None],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._look = look
        self._nursery = nursery
        self._mishaps = mishaps
        self._group_home = group_home
        self._oom_score_adj = oom_score_adj
        self._descriptor_limit = descriptor_limit
        self._read_clock = read_clock
        self._tell = tell
        self._note = note
        self.keepers = Keepers()
        self.sessions: GuardianSessions | None = None
        self._tasks: dict[TaskKey, _Task] = {}
        self._deadlines: list[tuple[float, TaskKey]] = []
        self._tombstones: dict[TaskKey, None] = {}
        self._full_groups: list[TaskGroup] = []
        self._closing = False
        self._closed_at = math.inf
        self._doubtful: list[_Task] = []  # their ends wait (GUARD-9)
        self._punch_at = self._tidy_at = 0.0
        self._turned_at, self._stall = read_clock(), (0.0, 0.0)

    # ---- what the agent asks

    def launch(self, launch: LaunchTask) -> None:
        """Start a task; if its key is known, answer with its start or end (GUARD-1)."""
        known = self._tasks.get(launch.key)
        if known is not None:
            self._answer_known(known)
        elif launch.key in self._tombstones:
            sentence = "this task had already ended and its end was acknowledged"
            self._tell(TaskEnded(key=launch.key, start_error=sentence))
        else:
            task = self._tasks[launch.key] = _Task(launch)
            if self._closing:
                task.stopped = True  # like the tasks that run here: its job is not charged
                self._refuse(task, "the host is shutting down")
            elif not abs(launch.deadline) <= MAX_FIGURE:
                sentence = f"{launch.deadline} is no time at which a lease ends"
                task.deadline = 0.0  # because no agent could read a status with this one
                self._refuse(task, sentence, hosts_fault=True)
            elif launch.deadline <= self._read_clock():
                task.lapsed = True
                self._refuse(task, "its lease had ended before it could be started")
            else:
                self._try_to_start(task, launch)

    def extend(self, deadlines: list[tuple[TaskKey, float]]) -> None:
        """Move deadlines later; an earlier one changes nothing (GUARD-2)."""
        for key, deadline in deadlines:
            task = self._tasks.get(key)
            if task is not None and task.deadline < deadline <= MAX_FIGURE:
                task.deadline = deadline
                if task.keeper is not None:
                    task.keeper.set_deadline(deadline)
                if self.sessions is not None:
                    self.sessions.extend(key, deadline)

    def stop(self, key: TaskKey, grace_seconds: float) -> None:
        """TERM a task now and KILL it after the grace. Of several calls the one with the soonest
        KILL counts."""
        task = self._tasks.get(key)
        if task is None:
            return
        if task.ended is not None:
            self._tell(task.ended)
        else:
            self._end(task, grace_seconds)

    def ack(self, keys: list[TaskKey]) -> None:
        """Forget ends that the controller has on record; keep a task that still runs."""
        for key in keys:
            task = self._tasks.get(key)
            if task is None or task.ended is None:
                continue
            del self._tasks[key]
            if task.run is not None:
                self._nursery.forget(task.run)
            self._tombstones[key] = None
            if len(self._tombstones) > MAX_TOMBSTONES:
                del self._tombstones[next(iter(self._tombstones))]

    def make_snapshot(self, incarnation: str, number: int) -> Snapshot:
        """Return the status of every task that is not acknowledged yet."""
        tasks = [task.as_status() for task in self._tasks.values()]
        return Snapshot(incarnation=incarnation, number=number, tasks=tasks)

    def find_place(self, key: TaskKey) -> TaskPlace | str:
        """Return the surroundings of a running task, or a sentence on why there are none."""
        task = self._tasks.get(key)
        if task is None or task.run is None or not task.run.runs or task.run.exit is not None:
            return f"task {key} does not run on this host"
        if task.stopped or self._closing:
            return f"task {key} is ending"
        return TaskPlace(*task.place[:2], task.deadline, task.place[2])

    # ---- what the guardian itself asks

    def note_turn(self) -> None:
        """Note that the guardian turns, and for how long it had not turned (stopped, starved,
        asleep)."""
        now = self._read_clock()
        if now - self._turned_at > _STALL_SECONDS:
            self._stall = self._turned_at, now
        self._turned_at = now

    def close(self, *, at_once: bool) -> None:
        """Stop every task, with its own grace or at once; start no task from now on."""
        if not self._closing:
            self._closing, self._closed_at = True, self._read_clock()
        self._say_doubtful()
        for task in self._tasks.values():
            if task.ended is None:
                self._end(task, 0.0 if at_once else task.grace_seconds)

    @property
    def count_running(self) -> int:
        """Return the number of tasks that have no `TaskEnded` yet."""
        return sum(task.ended is None for task in self._tasks.values())

    @property
    def count_held(self) -> int:
        """Return the number of tasks that are not acknowledged yet, running or ended."""
        return len(self._tasks)

    def end_lapsed(self) -> None:
        """KILL tasks past their deadlines (GUARD-2); a task whose deadline was moved is queued
        again."""
        now = self._read_clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, key = heapq.heappop(self._deadlines)
            task = self._tasks.get(key)
            if task is None or task.ended is not None:
                continue
            if task.deadline > now:
                heapq.heappush(self._deadlines, (task.deadline, key))
                continue
            task.lapsed = task.run is not None and task.run.exit is None
            stalled = self._count_stalled(task)
            self._note(
                f"a task's lease ended while this guardian did not turn for {stalled:.0f} s; it is killed"
                if stalled
                else "a task's lease ended without word from the controller; it is killed",
                task=str(key),
            )
            self._end(task, 0.0)

    def turn(self, now: float) -> float:
        """Keep logs and groups small; return the instant at which to be called again."""
        due = [self._deadlines[0][0]] if self._deadlines else []
        if self._doubtful:
            self._say_doubtful()
            due += [_end_of(task) + _TOLD_SECONDS for task in self._doubtful]
        living = [task for task in self._tasks.values() if task.run and task.run.exit is None]
        if living:
            if now >= self._punch_at:
                flooding = [task for task in living if self._punch_logs(task)]
                self._punch_at = now + (_FLOOD_SECONDS if flooding else _PUNCH_SECONDS)
            due.append(self._punch_at)
        if self._full_groups and now >= self._tidy_at:
            # A group can be busy for a moment after its last member was reaped, or for ever under
            # an unkillable one.
            self._full_groups = [group for group in self._full_groups if not group.remove()]
            self._tidy_at = now + _TIDY_SECONDS
        if self._full_groups:
            due.append(self._tidy_at)
        return min(due, default=math.inf)

    # ---- how

    def _try_to_start(self, task: _Task, launch: LaunchTask) -> None:
        """Start a task, or refuse it, because its key is known now and must have an answer."""
        try:
            self._start(task, launch)
        except ValidationError as error:
            self._refuse(task, str(error))
        except OSError as error:
            self._refuse(task, f"no process can be made: {error}", hosts_fault=True)
        except Exception as error:
            self._refuse(task, f"the guardian failed to start it: {error!r}", hosts_fault=True)
            raise

    def _start(self, task: _Task, launch: LaunchTask) -> None:
        heapq.heappush(self._deadlines, (task.deadline, task.key))
        if launch.contain or launch.memory_bytes:
            task.group = make_limited_group(self._group_home, launch.memory_bytes, self._mishaps)
        task.keeper = self.keepers.take_slot(task.deadline)
        slave = -1
        if launch.terminal and self.sessions is not None:
            slave = self.sessions.open_terminal(launch.key)
        request = SpawnRequest(
            argv=tuple(launch.argv),
            env=launch.env,
            cwd=launch.cwd,
            **_name_streams(launch, slave),
            group_procs=task.group.procs_path if task.group else None,
            oom_score_adj=self._oom_score_adj,
            descriptor_limit=self._descriptor_limit,
            keeper=task.keeper,
        )
        try:
            task.run = self._nursery.start(
                request,
                str(launch.key),
                ProgramEvents(
                    running=partial(self._take_start, task), ended=partial(self._take_end, task)
                ),
                group=task.group,
                leads=launch.leads,
                tell=launch.stop_tells,
            )
        finally:
            if slave >= 0:
                os.close(slave)

    def _take_start(self, task: _Task, run: ProgramRun) -> None:
        self._answer_known(task)
        if self.sessions is not None:
            self.sessions.tell_terminal(task.key, run)

    def _answer_known(self, task: _Task) -> None:
        if task.ended is not None:
            self._tell(task.ended)
        elif task.run is not None and task.run.runs:
            child = task.run.child
            self._tell(
                TaskStarted(key=task.key, pid=child.program_pid, started_at=child.started_at)
            )

    def _end(self, task: _Task, grace_seconds: float) -> None:
        if not 0.0 <= grace_seconds < math.inf:
            grace_seconds = 0.0  # such a grace would never end
        if task.run is not None:
            task.stopped = task.stopped or task.run.exit is None
            if self.sessions is not None:
                self.sessions.stop_those_of(task.key, grace_seconds)
            self._nursery.end(task.run, grace_seconds)

    def _refuse(
        self, task: _Task, sentence: str, *, hosts_fault: bool = False, code: int | None = None
    ) -> None:
        """Note and report the end of a task whose program never ran."""
        task.ended = TaskEnded(
            key=task.key,
            exit_code=code,
            start_error=sentence[:_MAX_SENTENCE],
            hosts_fault=hosts_fault,
            stopped=task.stopped,
            lapsed=task.lapsed,
        )
        task.place = {}, "", 0
        if self.sessions is not None:
            self.sessions.close_terminal(task.key, code, None, sentence)
        self._drop_keeper(task)
        self._drop_group(task)
        self._tell(task.ended)

    def _take_end(self, task: _Task, run: ProgramRun) -> None:
        """Report that all processes of a task are gone or given up; the snapshot repeats this
        until it is acknowledged."""
        if run.start_error is not None:
            child = run.child
            self._refuse(
                task, run.start_error, hosts_fault=child.hosts_fault, code=child.start_code
            )
            return
        if self.sessions is not None and self.sessions.wait_for_those_of(
            task.key, partial(self._take_end, task, run)
        ):
            return
        if not self._closing:
            self._look()
        if self._closing or task.stopped or not _may_be_told(run.exit):
            self._say_end(task, run)
        else:
            self._doubtful.append(task)

    def _say_doubtful(self) -> None:
        """Report the ends that have waited for long enough; all of them once the host closes."""
        now = self._read_clock()
        due = [t for t in self._doubtful if self._closing or _end_of(t) + _TOLD_SECONDS <= now]
        for task in due:
            assert task.run is not None
            self._doubtful.remove(task)
            self._say_end(task, task.run)

    def _say_end(self, task: _Task, run: ProgramRun) -> None:
        window = _TOLD_SECONDS if _may_be_told(run.exit) else _SAME_TURN_SECONDS
        if self._closing and _end_of(task) >= self._closed_at - window:
            task.stopped = True  # GUARD-9
        task.lapsed = task.lapsed or (task.keeper is not None and task.keeper.ended)  # KEEPER-1
        found, group = run.exit, task.group
        if run.child.program_pid in run.survivors:
            found = None  # the reaped process was its keeper
        counts = group is not None and self._group_home is not None and self._group_home.memory
        counted = group if counts else None
        peak_bytes = counted.read_peak_bytes() if counted else 0
        task.ended = TaskEnded(
            key=task.key,
            exit_code=found.exit_code if found else None,
            signal=found.signal if found else None,
            # The host's own count is no evidence, because another job may have been killed.
            oom=counted is not None and counted.count_oom_kills() > 0,
            oom_counted=counted is not None,
            stopped=task.stopped,
            lapsed=task.lapsed,
            keeper_killed=not task.stopped and task.keeper is not None and task.keeper.killed,
            stalled_seconds=self._count_stalled(task) if task.lapsed else 0.0,
            unkillable=bool(run.survivors),
            survivors=run.survivors,
            runtime_seconds=(run.exited_at or self._read_clock()) - run.child.started_at,
            max_memory_bytes=peak_bytes or (found.max_rss_bytes if found else 0),
            output=_name_output(task, run),
            left_running=[] if task.stopped else run.left_running,
        )
        task.place = {}, "", 0
        if self.sessions is not None:
            self.sessions.close_terminal(task.key, task.ended.exit_code, task.ended.signal)
        self._drop_keeper(task)
        self._tell(task.ended)
        self._punch_logs(task)  # its last output stays on disk as long as its logs
        self._drop_group(task)

    def _count_stalled(self, task: _Task) -> float:
        began, ended = self._stall
        return ended - began if began <= task.deadline <= ended else 0.0

    def _drop_keeper(self, task: _Task) -> None:
        if task.keeper is None or (task.run is not None and task.run.exit is None):
            return  # a keeper that survives SIGKILL still uses its slot
        if task.run is not None:
            task.run.child.drop_keeper()
        self.keepers.give_back(task.keeper)
        task.keeper = None

    def _drop_group(self, task: _Task) -> None:
        group, task.group = task.group, None
        if group is not None and not group.remove():
            self._full_groups.append(group)

    def _punch_logs(self, task: _Task) -> bool:
        """Bring the files of both output streams of a task under the limit of a log's size. Return
        True if a file was over the limit."""
        found = [limit_log_size(path, task.log_disk_bytes) for path in (task.stdout, task.stderr)]
        if LogSizeOutcome.UNSUPPORTED in found:
            self._mishaps.say_once(
                f"logs are not kept under their limit: no holes can be made where {task.stdout} "
                "lies"
            )
        return LogSizeOutcome.FREED in found


def _name_streams(launch: LaunchTask, slave: int) -> dict[str, Any]:
    """Return the streams of a start: its files, or its terminal where `slave` is not -1."""
    if slave < 0:
        return {"stdin": launch.stdin or None, "stdout": launch.stdout, "stderr": launch.stderr}
    return {"stdin_pipe": slave, "stdout_pipe": slave, "stderr_pipe": slave, "terminal": True}


def _end_of(task: _Task) -> float:
    return task.run.exited_at if task.run is not None else 0.0


def _may_be_told(found: Exit | None) -> bool:
    """Return True if a task's first process died of a signal that a host sends to all processes
    when it shuts down."""
    if found is None:
        return False
    return found.signal in _TOLD or (found.exit_code or 0) - 128 in _TOLD


def _name_output(task: _Task, run: ProgramRun) -> dict[str, StreamEnd]:
    """Return how many bytes of stdout and stderr were written, and how many were lost; a stream
    without either is left out."""
    names = {task.stdout: "stdout", task.stderr: "stderr"}
    return {names[path]: end for path, end in run.output.items() if end != StreamEnd()}
