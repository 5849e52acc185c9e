"""Note that a task's own program runs, and have it watched and reported.

START-1  While a task makes its environment, or waits for the making of another task, it is launched
         and does not run yet: its limit is that of the making, and no watchdog judges it. The clock
         of its own time limit begins with its program.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from holdfast.agent.bundles.setups import read_made
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.sync_wish import SyncWish
from holdfast.agent.watch.faults import FaultLooks
from holdfast.agent.watch.runner import WatchRunner
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent, AgentTaskState

log = logging.getLogger("holdfast.agent.orders.starts")

_LOOK_SECONDS = (0.05, 0.25)


@dataclass(eq=False)
class TaskStarts:
    """Has tasks watched from their start on, and reported to the controller soon after it."""

    watching: WatchRunner
    faults: FaultLooks
    news: SyncWish
    _makings: dict[TaskKey, asyncio.Task[None]] = field(default_factory=dict)

    def begin(self, task: AgentTask, pid: int, started_at: float) -> None:
        """Note that the task's first process runs, as process `pid`: the task's own program, or the
        program that makes its environment first."""
        if self.go_on(task, pid, started_at):
            self._tell_start(task)

    def go_on(self, task: AgentTask, pid: int, started_at: float) -> bool:
        """Note the task's first process as `begin` does, for a start that was told before. Return
        whether its own program runs."""
        task.pid, task.started_at = pid, started_at
        if task.order is not None and task.order.makes_environment:
            if (made_at := read_made(task)) is None:
                self._follow(task)
                return False
            task.started_at, task.setup_seconds = made_at, max(0.0, made_at - started_at)
        task.move(AgentTaskEvent.RUN)
        task.watch.started(task.started_at)  # not saved, because the guardian repeats it
        return True

    def _follow(self, task: AgentTask) -> None:
        if task.key not in self._makings:
            making = self._makings[task.key] = asyncio.create_task(self._wait_made(task))
            making.add_done_callback(lambda done: self._makings.pop(task.key, None))

    async def _wait_made(self, task: AgentTask) -> None:
        """Wait until a task's environment is ready and its own program runs (START-1)."""
        log.info("its environment is being made", extra=task.about())
        pause, slowest = _LOOK_SECONDS
        while task.state is AgentTaskState.LAUNCHED:
            if read_made(task) is not None:
                self.begin(task, task.pid, task.started_at)
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.1, slowest)

    def _tell_start(self, task: AgentTask) -> None:
        self.watching.poke()
        self.faults.begin(task)
        loop = asyncio.get_running_loop()
        loop.call_later(task.told_seconds + 0.002, self._tell, task)

    def _tell(self, task: AgentTask) -> None:
        if task.live:
            self.news.report()
