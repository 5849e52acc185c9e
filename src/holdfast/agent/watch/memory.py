"""Watch memory: end a task whose processes use more memory than its limit, if no control group of
the kernel enforces that limit.

MEM-1  A task is ended for memory of its own only. A page that processes share (forked data loaders
       do) counts by each one's share (PSS), and a page of a mapped file does not count, because the
       kernel can drop it when memory is short. The sum of resident memory, which is cheap to read,
       only shows when to measure.
MEM-2  No task is ended if the kernel enforces the limit already: the group that `/proc/PID/cgroup`
       names, or a group above it, has a limit that is no higher.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.agent.offload import run_aside
from holdfast.agent.probes.tree import find_trees, read_own_bytes, read_usage
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.core.ids import TaskKey
from holdfast.process.groups import read_memory_limit
from holdfast.process.syscalls import read_boottime

log = logging.getLogger("holdfast.agent.watch.memory")

_ROUND_SECONDS = 1.0
_NEAR_SECONDS = 0.2
_NEAR = 0.6
_STUCK_SECONDS = 10.0


@dataclass(eq=False)
class MemoryWatch:
    """Measures the tasks that have a memory limit. kill: kills all processes of a task at once.
    guardian_pid: the parent of the tasks' trees."""

    table: TaskTable
    guardian_pid: int
    kill: Callable[[AgentTask], None]
    _kept: dict[TaskKey, bool] = field(default_factory=dict)

    async def run(self) -> None:
        """Watch the memory of tasks for ever. A reading that hangs in the kernel is abandoned, and
        made anew later."""
        while True:
            tasks = [task for task in self.table if self._is_watched(task)]
            self._kept = {t.key: self._kept[t.key] for t in self.table if t.key in self._kept}
            near = False
            if tasks:
                reading = run_aside(lambda wanted=tasks: self.measure(wanted))  # type: ignore[misc]  # bound now
                done, _ = await asyncio.wait([reading], timeout=_STUCK_SECONDS)
                found = reading.result() if done else {}
                near = self._judge(found)
            await asyncio.sleep(_NEAR_SECONDS if near else _ROUND_SECONDS)

    def _is_watched(self, task: AgentTask) -> bool:
        running = task.has_processes and not task.saved.over_memory_bytes
        if not running or task.order is None or not task.order.memory_bytes or not task.pid:
            return False
        if task.key not in self._kept:
            self._kept[task.key] = _is_kept(task)
        return not self._kept[task.key]

    def measure(self, tasks: list[AgentTask]) -> dict[TaskKey, int | None]:
        """Return the memory of each task's processes in bytes, by the cheap sum if that is
        within the limit (MEM-1); None if the kernel enforces the limit after all."""
        trees = find_trees({task.key: task.pid for task in tasks}, self.guardian_pid)
        found: dict[TaskKey, int | None] = {}
        for task in tasks:
            limit = task.order.memory_bytes if task.order is not None else 0
            pids = [entry.pid for entry in trees.get(task.key, [])]
            usages = [usage for pid in pids if (usage := read_usage(pid)) is not None]
            used: int | None = sum(usage.rss_bytes for usage in usages)
            if used is not None and used > limit:
                # A container's process may have entered its group after the last check. The group
                # is read before the memory, because a process that exits has neither: if it still
                # has memory, the group that was read was its own.
                used = None if _is_kept(task) else sum(map(read_own_bytes, pids))
            found[task.key] = used
        return found

    def _judge(self, found: dict[TaskKey, int | None]) -> bool:
        """Kill the tasks that are over their limits. Return True if a task is near its limit."""
        near = False
        for key, used in found.items():
            task = self.table.get(key)
            if task is None or task.order is None or not task.has_processes:
                continue
            if used is None:
                self._kept[key] = True
                continue
            limit = task.order.memory_bytes
            near = near or used > _NEAR * limit
            if used > limit:
                task.saved.over_memory_bytes = used
                log.warning(
                    f"it holds {used >> 20} MiB, over its memory limit of {limit >> 20} MiB",
                    extra=task.about(),
                )
                self.table.save(task, read_boottime())
                self.kill(task)
        return near


def _is_kept(task: AgentTask) -> bool:
    """Return True if the kernel enforces the task's limit (MEM-2)."""
    assert task.order is not None
    limit = read_memory_limit(task.pid)
    return limit is not None and limit <= task.order.memory_bytes
