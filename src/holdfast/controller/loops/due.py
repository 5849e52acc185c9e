"""Waiting jobs whose time has come → queued: start times at once, retries as fast as the rate limit
lets them."""

from __future__ import annotations

import heapq
import logging

from holdfast.controller.loops.allowance import Allowance
from holdfast.controller.loops.silhouette import Summary
from holdfast.controller.runtime.context import LOOK_SECONDS, Controller
from holdfast.store.port.store import Released

log = logging.getLogger("holdfast.loops")
MAX_BATCHES = 100
LEAST_SECONDS = 0.01
PACE_SECONDS = 0.1  # under the rate limit a few go together: a transaction for each would cost more than it spreads


class DueLoop:
    """Wakes by itself when the next retry it was told of is due, and at least every second."""

    name = "due"
    topic: str | None = "due"

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._allowance = Allowance()
        self.interval_seconds = LOOK_SECONDS

    async def run_once(self) -> Summary:
        controller = self._controller
        settings = await controller.settings.current()
        limit = settings.value("retry_rate_limit")
        rate = None if limit is None else float(limit)
        # Forgotten before the store is asked: a retry decided meanwhile is noted anew, and none is
        # missed.
        while controller.dues and controller.dues[0] <= controller.clock():
            heapq.heappop(controller.dues)
        started = retries = held = 0
        left = False
        for _ in range(MAX_BATCHES):
            found = await controller.store.release_due(
                self._allowance.refill(rate, controller.clock())
            )
            self._allowance.spend(found.retries)
            started, retries, held, left = (
                started + found.started,
                retries + found.retries,
                held + found.held,
                found.left,
            )
            if found.started + found.retries + found.held == 0:
                break
            controller.poke("admit", "events")  # before the next look, which mostly finds nothing
        self.interval_seconds = self._choose_wait(rate, left)
        return self._tell(Released(started=started, retries=retries, held=held, left=left))

    def _choose_wait(self, rate: float | None, left: bool) -> float:
        wait = LOOK_SECONDS
        if self._controller.dues:
            wait = min(
                wait, max(LEAST_SECONDS, self._controller.dues[0] - self._controller.clock())
            )
        if left:
            wait = min(wait, max(PACE_SECONDS, self._allowance.wait_seconds(rate)))
        return wait

    def _tell(self, done: Released) -> Summary:
        if done.retries:
            self._controller.metrics.retry_dispatched.inc(done.retries)
            more = "; the rate limit keeps others for later" if done.left else ""
            log.info("%d retries dispatched%s", done.retries, more)
        if done.held:
            log.warning(
                "%d due retries are held by the kill switch; `holdfast retries` says whose",
                done.held,
            )
        counts = {"released": done.started, "retries": done.retries, "held": done.held}
        return {name: count for name, count in counts.items() if count}
