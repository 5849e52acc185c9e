"""A controller whose time stands still: `python -m bench.counts.still server …` is `holdfast
server …`, but no timer of `LONG_SECONDS` or more comes due by itself.

So no loop looks because of its interval, and whatever the controller does was asked for, however
long that took; nor does what it remembers for a while become old. A file says how time goes on, and
SIGUSR1 has it read: one line with the seconds that pass for what is remembered, and the shortest and
the longest delay of the timers that come due. The answer, beside that file and ending in `.done`,
is how many these are, and how many short ones will come due. With `GOES_ON` in place of these delays
time goes on as ever, until the next line.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import uvloop

from holdfast.cli.main import main
from holdfast.controller.runtime import context
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.leading.leadership import Leadership
from holdfast.store.postgres.connection import session
from holdfast.store.postgres.connection.pool import WarmPool
from holdfast.store.postgres.store import PostgresStore

LONG_SECONDS = 0.9
NEVER_SECONDS = 1e8
GOES_ON = -1.0
ORDER_FILE = "BENCH_COUNTS_ORDERS"


class StillLoop(uvloop.Loop):
    """An event loop in which long timers wait for `come_due`."""

    def __init__(self) -> None:
        super().__init__()
        self._long: dict[asyncio.TimerHandle, tuple[float, Callable[[], None]]] = {}
        self._short: set[asyncio.TimerHandle] = set()
        self._ends = False
        self.goes_on = False

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back after `delay`, or once a long delay is told to be over."""
        if delay < LONG_SECONDS or self._ends:
            return self._call_soon(delay, callback, args, context)
        if len(self._long) > 500:
            self._long = {h: told for h, told in self._long.items() if not h.cancelled()}
        handle = super().call_later(NEVER_SECONDS, callback, *args, context=context)

        def fire() -> None:
            self.call_soon(callback, *args, context=context)

        self._long[handle] = (delay, fire)
        if self.goes_on:
            super().call_later(delay, self._fire_once, handle, fire)
        return handle

    def _call_soon(
        self,
        delay: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> asyncio.TimerHandle:
        def call() -> None:
            self._short.discard(handle)
            callback(*args)

        handle = super().call_later(delay, call, context=context)
        self._short.add(handle)
        return handle

    def count_short(self) -> int:
        """Return how many short timers will come due: while there is one, an act is not over."""
        self._short = {handle for handle in self._short if not handle.cancelled()}
        return len(self._short)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at an instant of this loop, as `call_later`."""
        return self.call_later(max(0.0, when - self.time()), callback, *args, context=context)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        """Handle a signal. With SIGTERM time goes on, because the controller ends within times."""

        def handle() -> None:
            self._ends = True
            self.come_due(0.0, NEVER_SECONDS)
            callback(*args)

        super().add_signal_handler(
            sig, *((handle,) if sig == signal.SIGTERM else (callback, *args))
        )

    def go_on(self) -> None:
        """Let each long timer come due after its delay from now, and further ones as ever."""
        self.goes_on = True
        for handle, (delay, fire) in list(self._long.items()):
            if not handle.cancelled():
                super().call_later(delay, self._fire_once, handle, fire)

    def _fire_once(self, handle: asyncio.TimerHandle, fire: Callable[[], None]) -> None:
        if self.goes_on and self._long.pop(handle, None) is not None and not handle.cancelled():
            handle.cancel()
            fire()

    def come_due(self, low: float, high: float) -> int:
        """Let the timers with a delay within these seconds come due; return how many."""
        self._long = {h: told for h, told in self._long.items() if not h.cancelled()}
        due = [handle for handle, (delay, _) in self._long.items() if low <= delay <= high]
        found = [self._long.pop(handle) for handle in due]
        for handle, (_, fire) in zip(due, found, strict=True):
            handle.cancel()
            fire()
        return len(found)


class StillClock:
    """A clock that is told when time passes."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self._went_on_at: float | None = None

    def __call__(self) -> float:
        """Return the seconds that it shows."""
        since = self._went_on_at
        return self.now + (0.0 if since is None else time.monotonic() - since)

    def go_on(self, goes: bool) -> None:
        """Go on from what the clock shows, or stand still there."""
        self.now = self()
        self._went_on_at = time.monotonic() if goes else None


def make_loop(clock: StillClock) -> StillLoop:
    """Make the controller's event loop, which reads its orders at SIGUSR1."""
    loop, path = StillLoop(), Path(os.environ[ORDER_FILE])

    def read() -> None:
        passed, low, high = map(float, path.read_text().split())
        goes = low == GOES_ON
        if goes != loop.goes_on:
            clock.go_on(goes)
            loop.goes_on = goes
            if goes:
                loop.go_on()
        clock.now += passed
        done = path.with_suffix(".new")
        done.write_text(json.dumps([loop.come_due(low, high), loop.count_short()]))
        done.replace(path.with_suffix(".done"))

    loop.call_soon(lambda: loop.add_signal_handler(signal.SIGUSR1, read))
    return loop


class FullPool(WarmPool):
    """A pool that has all its connections from the beginning, because making one has statements,
    and when it grows is chance."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **{**more, "min_size": more["max_size"]})


def run() -> NoReturn:
    """Run the command line with a still event loop and a still clock."""
    clock = StillClock()
    uvloop.new_event_loop = lambda: make_loop(clock)
    given = Controller.__init__.__defaults__ or ()
    assert time.monotonic in given, "the controller takes its clock in another way now"
    Controller.__init__.__defaults__ = tuple(
        clock if one is time.monotonic else one for one in given
    )
    # The lead compares its clock with the database's, which goes on, and is not renewed in time.
    context.Leadership = lambda store, _, outages: Leadership(store, time.monotonic, outages)
    PostgresStore.__init__.__kwdefaults__["lead_seconds"] = 3600.0
    session.WarmPool = FullPool
    main()


if __name__ == "__main__":
    run()
