"""Work that no caller waits for."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.controller.runtime.outages import Outages
from holdfast.errors import HoldfastError, Unavailable

log = logging.getLogger("holdfast.controller")
AGAIN_SECONDS = 1.0
BEHIND_SECONDS = 0.02
"""How long a read that no caller waits for is delayed, because the callers' own statements come
first."""
_CLOSE_SECONDS = 0.2  # cancelled work should end at once


async def keep_going(name: str, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a part of a process for ever: where the work that `begin` starts ends or fails, that is
    logged and the work is started again after a moment. Only a cancellation of its task ends it."""
    while True:
        try:
            await begin()
            log.error("%s ended by itself; it begins again", name)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.error("%s was broken off by a cancel inside of it; it begins again", name)
        except Exception:
            log.exception("%s failed; it begins again", name)
        await asyncio.sleep(AGAIN_SECONDS)


class Background:
    """Runs work in the background, keeps its tasks alive until they end, and logs their
    failures."""

    def __init__(self, outages: Outages) -> None:
        self._outages = outages
        self._tasks: set[asyncio.Task[None]] = set()
        self._readers: set[object] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside the caller, which may wait for the returned task and must not cancel
        it."""
        task = asyncio.get_running_loop().create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def read_behind(self, owner: object, read: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run `read` after `BEHIND_SECONDS`, unless a read of the same owner has yet to end."""
        if owner in self._readers:
            return

        async def wait_and_read() -> None:
            try:
                await asyncio.sleep(BEHIND_SECONDS)
                await read()
            finally:
                self._readers.discard(owner)

        self._readers.add(owner)
        self.start(wait_and_read())

    async def close(self) -> None:
        """Cancel the work still running, and wait for its end for a moment."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_SECONDS)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Unavailable as error:
            self._outages.note_failure(error)
        except HoldfastError as error:
            log.debug("a background step found nothing to do: %s", error)
        except Exception:
            log.exception("a background step failed")
