"""Note that a task's own program runs, and have it watched and reported."""

import asyncio
from dataclasses import dataclass

from holdfast.agent.tasks import AgentTask
from holdfast.agent.uplink.news import News
from holdfast.agent.watch.faults import FaultLooks
from holdfast.agent.watch.runner import WatchRunner
from holdfast.core.states import AgentTaskEvent


@dataclass(eq=False)
class TaskStarts:
    """Has tasks watched from their start on, and reported to the controller soon after it."""

    watching: WatchRunner
    faults: FaultLooks
    news: News

    def begin(self, task: AgentTask, pid: int, started_at: float) -> None:
        """Note that the task's own program runs, as process `pid`."""
        task.move(AgentTaskEvent.RUN)
        task.pid, task.started_at = pid, started_at
        task.watch.started(started_at)  # not saved, because the guardian repeats it
        self.watching.poke()
        self.faults.begin(task)
        loop = asyncio.get_running_loop()
        loop.call_later(task.told_seconds + 0.002, self._tell, task)

    def _tell(self, task: AgentTask) -> None:
        if task.live:
            self.news.report()
