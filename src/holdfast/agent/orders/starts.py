"""What follows when a task's own program begins to run."""

import asyncio
from dataclasses import dataclass

from holdfast.agent.tasks import AgentTask
from holdfast.agent.uplink.news import News
from holdfast.agent.watch.faults import FaultLooks
from holdfast.agent.watch.runner import WatchRunner
from holdfast.core.states import AgentTaskEvent


@dataclass(eq=False)
class TaskStarts:
    """Has tasks watched from their start on, and told of soon after it."""

    watching: WatchRunner
    faults: FaultLooks
    news: News

    def begin(self, task: AgentTask, pid: int, started_at: float) -> None:
        """The work itself runs, as process `pid`."""
        task.move(AgentTaskEvent.RUN)
        task.pid, task.started_at = pid, started_at
        task.watch.started(started_at)  # not written down: the guardian says it again
        self.watching.poke()
        self.faults.begin(task)
        loop = asyncio.get_running_loop()
        loop.call_later(task.told_seconds + 0.002, self._tell, task)

    def _tell(self, task: AgentTask) -> None:
        if task.live:
            self.news.report()
