"""Work beside the caller: coroutines, and blocking reads that may never return.

asyncio joins its own thread pool when the loop closes and when the interpreter exits: one read of a
process that is stuck in the kernel would keep the agent from ever ending. The threads here are
daemons and are left behind.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")


def run_aside(read: Callable[[], Value]) -> asyncio.Future[Value]:
    """Return a future of what `read` returns or raises, in a daemon thread of its own."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Value] = loop.create_future()

    def settle(value: Value | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]  # None only where `read` returned it

    def work() -> None:
        value: Value | None = None
        error: BaseException | None = None
        try:
            value = read()
        except BaseException as caught:
            error = caught
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            pass  # the loop is closed: the answer has no reader any more

    threading.Thread(target=work, daemon=True).start()
    return future


class Asides:
    """Coroutines that run beside their caller; asyncio alone would keep only weak references to
    them."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run one."""
        aside = asyncio.create_task(work)
        self._running.add(aside)
        aside.add_done_callback(self._running.discard)

    async def wait(self, seconds: float) -> None:
        """Wait until all have ended, at most so long."""
        if self._running:
            await asyncio.wait(list(self._running), timeout=seconds)
