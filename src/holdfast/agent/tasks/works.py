"""Run the work under way for the tasks of this agent: a start that waits for its checkpoint, or
an end."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from holdfast.core.ids import TaskKey

log = logging.getLogger("holdfast.agent.tasks.works")


class TaskWorks:
    """Holds the work under way for each task: one at most, because a task that starts has not
    ended."""

    def __init__(self) -> None:
        self._works: dict[TaskKey, asyncio.Task[None]] = {}
        self._failed = asyncio.Event()
        self._failure: BaseException | None = None

    def begin(self, key: TaskKey, work: Coroutine[Any, Any, None]) -> None:
        """Start a work for a task."""
        begun = self._works[key] = asyncio.create_task(work)
        begun.add_done_callback(lambda done: self._note_done(key, done))

    def find(self, key: TaskKey) -> asyncio.Task[None]:
        """Return a task's work. Raises KeyError if there is none."""
        return self._works[key]

    def stop(self, key: TaskKey) -> None:
        """Cancel a task's work, if there is any."""
        if key in self._works:
            self._works[key].cancel()

    async def watch(self) -> None:
        """Wait for ever; raise the error of a work that failed. The next agent repeats its
        steps."""
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    async def close(self) -> None:
        """Cancel all works; the next agent begins them again."""
        works = list(self._works.values())
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    def _note_done(self, key: TaskKey, work: asyncio.Task[None]) -> None:
        if self._works.get(key) is work:
            del self._works[key]
        error = None if work.cancelled() else work.exception()
        if error is not None and self._failure is None:
            self._failure = error
            self._failed.set()
        elif error is not None:
            log.error("a task could not go on", exc_info=error)
