"""Calls of executors that are gone, and calls whose back-off is over → ready again."""

import logging
from datetime import datetime, timedelta

from holdfast.controller.loops.loop import Loop, Summary

log = logging.getLogger("holdfast.loops")
LOOK_SECONDS = 2.0
LEAST_SECONDS = 0.02
ABSENT_SECONDS = 90.0
"""How long the client of an open set may be silent; it reports its presence every 20 s."""
ABSENT_LOOK_SECONDS = 15.0


class CallsLoop(Loop):
    """Wakes when a call ended badly, when the next back-off is over, and every two seconds.

    A batch goes back when its executor's task is over without a last report, which silence alone
    never proves (LEASE-4).
    """

    name = "calls"
    topic = "calls"
    by_look = True
    interval_seconds = LOOK_SECONDS
    _looked_at: datetime | None = None

    async def run_once(self) -> Summary:
        controller = self._controller
        calls = controller.store.calls
        now = await controller.leadership.read_time()
        since = controller.leadership.hears_since  # an outage is no absence of theirs
        settings = await controller.settings.current()
        returned = 0
        if since is not None:
            returned = await calls.return_batches(
                since, policy_of=settings.call_policy, rules=settings.rules
            )
        released = await calls.release_due(policy_of=settings.call_policy)
        if returned:
            log.warning("%d batches of executors that are gone were returned", returned)
        if returned or released:
            feeds = await calls.read_feeds()
            controller.poke("executors", "events", *(f"calls:{f.family.name}" for f in feeds))
        closed = await self._close_absent(now, since)
        due = await calls.find_due()
        left = LOOK_SECONDS if due is None else (due - now).total_seconds()
        self.interval_seconds = min(LOOK_SECONDS, max(LEAST_SECONDS, left))
        counts = {"returned": returned, "released": released, "closed": closed}
        return {name: count for name, count in counts.items() if count}

    async def _close_absent(self, now: datetime, since: datetime | None) -> int:
        """Close sets whose clients went away. No set is closed before all clients had time to come
        back to a new leader."""
        patience = timedelta(seconds=ABSENT_SECONDS)
        looked = self._looked_at
        early = looked is not None and now - looked < timedelta(seconds=ABSENT_LOOK_SECONDS)
        if since is None or now - since < patience or early:
            return 0
        self._looked_at = now
        closed = await self._controller.store.calls.close_absent(ABSENT_SECONDS)
        if closed:
            self._controller.poke("events", *(f"set:{set_id}" for set_id in closed))
        return len(closed)
