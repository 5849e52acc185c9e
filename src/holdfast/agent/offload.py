"""Blocking reads that may never return, in threads nobody waits for.

asyncio's own thread pool is joined when the loop closes and when the interpreter exits: one read of
a process that is stuck in the kernel would keep the agent from ever going. These threads are
daemons and are left behind.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

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
            pass  # the loop is closed: nobody waits any more

    threading.Thread(target=work, daemon=True).start()
    return future
