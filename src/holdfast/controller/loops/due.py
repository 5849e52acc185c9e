"""Waiting jobs whose time has come → queued: start times at once, retries as fast as the rate limit
allows."""

import logging

from holdfast.controller.loops.loop import MAX_BATCHES, Loop, Summary
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.leading.due_times import LOOK_SECONDS

log = logging.getLogger("holdfast.loops")
LEAST_SECONDS = 0.01
PACE_SECONDS = 0.1  # the rate limit lets a few go together, because each transaction has its cost


class DueLoop(Loop):
    """Wakes by itself when the next expected retry is due, and at least every second."""

    name = "due"
    topic = "due"
    by_look = True
    interval_seconds = LOOK_SECONDS

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._allowance = controller.allowance

    async def run_once(self) -> Summary:
        controller = self._controller
        limit = (await controller.settings.current()).value("retry_rate_limit")
        rate = None if limit is None else float(limit)
        # Before the store is asked: a retry decided meanwhile is noted anew, and none is missed.
        controller.dues.drop_past()
        started = retries = held = 0
        left = False
        for _ in range(MAX_BATCHES):
            allowed = self._allowance.refill(rate, controller.clock())
            self._allowance.spend(allowed or 0)  # first, because decisions spend tokens meanwhile
            found = await controller.store.admission.release_due(allowed)
            self._allowance.spend(found.retries - (allowed or 0))
            started += found.started
            retries += found.retries
            held += found.held
            left = found.left
            if found.started + found.retries + found.held == 0:
                break
            controller.poke("admit", "events")  # before the next look, which mostly finds nothing
        wait = max(LEAST_SECONDS, controller.dues.seconds_left())
        if left:
            wait = min(wait, max(PACE_SECONDS, self._allowance.wait_seconds(rate)))
        self.interval_seconds = wait
        if retries:
            controller.metrics.retry_dispatched.inc(retries)
            more = "; the rate limit keeps others for later" if left and rate is not None else ""
            log.info("%d retries dispatched%s", retries, more)
        if held:
            log.warning(
                "a kill switch holds %d retries that are due; `holdfast retries` says which", held
            )
        counts = {"released": started, "retries": retries, "held": held}
        return {name: count for name, count in counts.items() if count}
