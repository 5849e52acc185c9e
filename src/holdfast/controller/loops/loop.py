"""The common shape of all loops, and how a loop is kept running.

LOOP-1  A loop wakes by hints and by its interval; the interval alone is enough for it to be right.
        Where the leader's look can say that a loop has nothing to do, the loop sends no statement
        of its own at the end of its interval (LOOK-1).
LOOP-2  A run that fails is logged and the loop goes on, later and later up to a bound while it
        keeps failing.
LOOP-3  A loop that is cancelled ends, also where the cancellation was lost on its way: a clean-up
        that fails can swallow it, and so can `asyncio.wait_for` (before Python 3.12). So every run
        ends with a check for a lost cancellation.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.leading.looks import LOOK_SECONDS, PATIENCE_SECONDS
from holdfast.controller.runtime.wakes import Wake, wait_any
from holdfast.errors import Stale, Unavailable
from holdfast.moves.values import Advanced

log = logging.getLogger("holdfast.loops")
MAX_BACK_OFF_SECONDS = 10.0
MAX_BATCHES = 100
Summary = Mapping[str, Any]


class Loop:
    """One control loop. topic: the wake topic of its hints; None for a loop with an interval alone.
    also: a second wake topic. by_look: at the end of its interval the loop runs only where the
    leader's look, `look` in `sql/leadership.sql`, names it; else it runs at each interval."""

    name: str
    topic: str | None = None
    also: str | None = None
    by_look: bool = False
    interval_seconds: float

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def run_once(self) -> Summary:
        """Do the work that is due now, and return counts of what was done; an empty summary where
        there was nothing."""
        raise NotImplementedError  # each loop has its own

    def rest(self) -> None:
        """Note that the look found nothing to do."""

    async def stop(self) -> None:
        """Cancel the work that runs beside the loop. Called once the loop runs no more."""


def end_if_cancelled() -> None:
    """Raise CancelledError where the current task was cancelled (LOOP-3)."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def keep_running(controller: Controller, loop: Loop) -> None:
    """Run `loop` until cancelled."""
    names = (loop.topic or f"loop:{loop.name}", loop.also)
    wakes = [controller.wakes.topic(name) for name in names if name is not None]
    failures = 0
    while True:
        seen = {wake: wake.version for wake in wakes}
        began = time.perf_counter()
        try:
            summary = await loop.run_once()
        except Unavailable as error:
            controller.outages.note_failure(error)  # logs once per outage
            failures += 1
        except Stale as error:  # LEAD-3: this replica was slow, and another leads
            log.warning("loop %s: %s", loop.name, error.message, extra={"loop": loop.name})
            failures += 1
        except asyncio.CancelledError:
            end_if_cancelled()
            # Something that the run waited for was cancelled, and not the loop.
            log.error("loop %s was broken off; it goes on", loop.name, extra={"loop": loop.name})
            failures += 1
        except Exception:
            controller.metrics.loop_failures.labels(loop.name).inc()
            log.exception("loop %s failed; it goes on", loop.name, extra={"loop": loop.name})
            failures += 1
        else:
            controller.outages.note_success()
            failures = 0
            if summary:
                log.debug("loop %s: %s", loop.name, dict(summary), extra={"loop": loop.name})
        controller.metrics.loop_seconds.labels(loop.name).observe(time.perf_counter() - began)
        end_if_cancelled()
        if failures:
            # Hints are not heard here, because they would turn a failing loop into a busy one.
            delay = min(0.25 * 2 ** min(failures, 10), MAX_BACK_OFF_SECONDS)
            pause = controller.wakes.topic(f"back-off:{loop.name}")
            await pause.wait(pause.version, delay)
        else:
            await _wait_for_work(controller, loop, seen)


async def _wait_for_work(controller: Controller, loop: Loop, seen: Mapping[Wake, int]) -> None:
    """Wait for a hint, and at most until the end of an interval for which the look names the loop.
    A loop that has made its interval shorter knows itself when its next work is due."""
    if not loop.by_look or loop.interval_seconds < type(loop).interval_seconds:
        await wait_any(seen, loop.interval_seconds)
        return
    while not await wait_any(seen, loop.interval_seconds - LOOK_SECONDS):
        answer = controller.looks.ask(loop.name)
        woken = await wait_any(seen, LOOK_SECONDS + PATIENCE_SECONDS, answer)
        if woken or not answer.done() or answer.result():
            return
        loop.rest()


async def advance_waiting(
    controller: Controller, advance: Callable[[], Awaitable[Advanced]], *topics: str
) -> Summary:
    """Call `advance` batch by batch until no job is left, and wake `topics` after each batch that
    released or cancelled jobs. Return the two counts."""
    counts: Counter[str] = Counter()
    for _ in range(MAX_BATCHES):
        found = await advance()
        counts.update(released=found.released, cancelled=found.cancelled)
        if found.released or found.cancelled:
            controller.poke(*topics)
        if not found.left:
            break
    return +counts


async def prune_history(
    controller: Controller, prune: Callable[[float], Awaitable[int]]
) -> Summary:
    """Call `prune` with `history_days`, batch by batch, until nothing is left or enough is done for
    one run."""
    days = (await controller.settings.current()).value("history_days")
    if not isinstance(days, (int, float)):
        return {}
    deleted = 0
    for _ in range(MAX_BATCHES):
        count = await prune(float(days))
        deleted += count
        if not count:
            break
    return {"deleted": deleted} if deleted else {}
