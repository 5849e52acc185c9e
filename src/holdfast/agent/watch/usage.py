"""Measure the processor time and the memory of every running task, for the controller's views.

Where a task has a control group of its own, the group counts, also what ended in between; else the
processes of the task's tree are added up. In a container's group a session's process counts, too.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from holdfast.agent.offload import run_aside
from holdfast.agent.probes.tree import find_trees, read_own_bytes, read_usage
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.core.ids import TaskKey
from holdfast.core.readings.usage import RankUsage
from holdfast.core.states import AgentTaskState
from holdfast.process.groups import TaskGroup, find_apart_groups
from holdfast.process.syscalls import read_boottime
from holdfast.process.table import ProcessEntry

log = logging.getLogger("holdfast.agent.watch.usage")

INTERVAL_SECONDS = 15.0
TELL_SECONDS = 60.0
"""A task's readings are told together, because the controller writes two rows each time."""
_TASKS_A_SECOND = 2.0  # of one host, at most, are told
_LOAD = 0.005  # of one processor, at most, is spent on readings
_LEAST_SECONDS = 1.0
_STUCK_SECONDS = 10.0

_Spent = dict[tuple[int, int], tuple[int, float]]
"""Of each process of a tree: its parent's pid, and the processor seconds of it and of the children
that it has reaped."""


class _Seen:
    """The state of one task's readings: the last one (`at`, and what its group or its processes had
    spent by then), and what was read since it was last told."""

    __slots__ = (
        "at",
        "cores_max",
        "group_seconds",
        "memory_max",
        "span",
        "spent",
        "told_at",
        "used",
    )

    def __init__(self, at: float, group_seconds: float | None) -> None:
        self.at = at
        self.group_seconds = group_seconds
        self.spent: _Spent = {}
        self.told_at: float | None = None
        self.used = self.span = self.cores_max = 0.0
        self.memory_max = 0

    def add(self, now: float, used: float, memory_bytes: int) -> None:
        """Add a reading."""
        span = now - self.at
        self.used, self.span = self.used + used, self.span + span
        self.cores_max = max(self.cores_max, used / span)
        self.memory_max = max(self.memory_max, memory_bytes)

    def take_readings(self, key: TaskKey, now: float) -> RankUsage:
        """Return the readings since the last call, and forget them."""
        cores, most = round(self.used / self.span, 3), round(self.cores_max, 3)
        told = RankUsage(key, cores, self.memory_max, most)
        self.told_at, self.used, self.span, self.cores_max, self.memory_max = now, 0.0, 0.0, 0.0, 0
        return told


class UsageMeter:
    """Measures the running tasks. guardian_pid: the parent of the tasks' trees."""

    def __init__(self, table: TaskTable, guardian_pid: int) -> None:
        self._table = table
        self._guardian_pid = guardian_pid
        self._seen: dict[TaskKey, _Seen] = {}
        self._untold: list[RankUsage] = []

    def take_readings(self) -> list[RankUsage]:
        """Return the readings that were not returned before. A reading whose sync was lost leaves a
        gap."""
        untold, self._untold = self._untold, []
        return untold

    async def run(self) -> None:
        """Measure for ever. A reading that hangs in the kernel is abandoned."""
        pause = INTERVAL_SECONDS
        while True:
            await asyncio.sleep(pause)
            tasks = [t for t in self._table if t.state is AgentTaskState.RUNNING and t.pid]
            self._seen = {t.key: self._seen[t.key] for t in tasks if t.key in self._seen}
            took = await self._read(tasks) if tasks else 0.0
            pause = max(INTERVAL_SECONDS, took / _LOAD)

    async def _read(self, tasks: list[AgentTask]) -> float:
        """Measure in a thread; return the processor seconds that it took."""
        reading = run_aside(lambda: (self.measure(tasks), time.thread_time()))
        done, _ = await asyncio.wait([reading], timeout=_STUCK_SECONDS)
        if not done:
            return _STUCK_SECONDS
        if (error := reading.exception()) is not None:
            log.error("the use of tasks cannot be read", exc_info=error)
            return 0.0
        told, took = reading.result()
        self._untold += told
        return took

    def measure(self, tasks: Sequence[AgentTask]) -> list[RankUsage]:
        """Read every task; return the readings of those that are due to be told: after the first one,
        and then once in `TELL_SECONDS`, more rarely on a host with many tasks.

        A task's first reading is of the time since its start if that was lately; else only the next
        one tells anything.
        """
        tell_seconds = max(TELL_SECONDS, len(tasks) / _TASKS_A_SECOND)
        groups = find_apart_groups(task.pid for task in tasks)
        known = {task.key: _read_groups(groups[task.pid]) for task in tasks}
        roots = {task.key: task.pid for task in tasks if None in known[task.key]}
        trees = find_trees(roots, self._guardian_pid) if roots else {}
        found = []
        for task in tasks:
            seconds, memory_bytes = known[task.key]
            members = trees.get(task.key, [])
            if task.key in roots and not members:
                continue
            now = read_boottime()
            spent = _read_spent(members) if seconds is None else {}
            if memory_bytes is None:
                memory_bytes = sum(read_own_bytes(entry.pid) for entry in members)
            seen = self._seen.get(task.key)
            if seen is None:
                seen = self._seen[task.key] = _see_first(task, now, seconds)
            if 0 < now - seen.at < _LEAST_SECONDS:
                continue
            if now > seen.at:
                if seconds is None or seen.group_seconds is None:
                    used = count_work(seen.spent, spent)
                else:
                    used = max(0.0, seconds - seen.group_seconds)
                seen.add(now, used, memory_bytes)
            seen.at, seen.group_seconds, seen.spent = now, seconds, spent
            if seen.span and (seen.told_at is None or now - seen.told_at >= tell_seconds - 1.0):
                found.append(seen.take_readings(task.key, now))
        return found


def _see_first(task: AgentTask, now: float, seconds: float | None) -> _Seen:
    """Return a task's start as the reading before, if the task is young; else now, because its first
    reading would be the average of its life."""
    if task.started_at > 0 and now - task.started_at < 2 * INTERVAL_SECONDS:
        return _Seen(task.started_at, None if seconds is None else 0.0)
    return _Seen(now, seconds)


def _read_groups(groups: Sequence[TaskGroup]) -> tuple[float | None, int | None]:
    """Return the processor seconds and the bytes of memory that a task's control groups count; None
    for a figure that no group counts."""
    seconds = [s for group in groups if (s := group.read_cpu_seconds()) is not None]
    sizes = [size for group in groups if (size := group.read_own_bytes()) is not None]
    return (max(seconds, default=None), max(sizes, default=None))


def _read_spent(members: Sequence[ProcessEntry]) -> _Spent:
    spent = {}
    for entry in members:
        usage = read_usage(entry.pid)
        if usage is not None:
            spent[entry.identity] = (entry.ppid, usage.cpu_seconds)
    return spent


def count_work(before: Mapping[tuple[int, int], tuple[int, float]], now: _Spent) -> float:
    """Return the processor seconds that a tree of processes worked between two readings.

    A process that ended meanwhile is in the time of its nearest ancestor that still lives, with all
    of its life: what it had worked by the first reading is taken off there. An ancestor that reaps
    nothing loses at most its own work by that.
    """
    grown = {
        identity: seconds - before.get(identity, (0, 0.0))[1]
        for identity, (_, seconds) in now.items()
    }
    living = {identity[0]: identity for identity in now}
    gone = {identity[0]: told for identity, told in before.items() if identity not in now}
    for parent, seconds in gone.values():
        seen: set[int] = set()
        while parent in gone and parent not in living and parent not in seen:
            seen.add(parent)
            parent = gone[parent][0]
        if parent in living:
            grown[living[parent]] -= seconds
    return sum(max(0.0, seconds) for seconds in grown.values())
