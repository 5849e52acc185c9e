"""Minutes that are over → rows of the ledger; old rows → deleted."""

import asyncio
import time

from holdfast.controller.loops.loop import MAX_BATCHES, Loop, Summary
from holdfast.core.ledger.close_minutes import close_span

PAUSE_SECONDS, MOST_PAUSE_SECONDS = 10.0, 600.0
SHARE = 0.05
"""The part of the time in which minutes are closed, at most."""


class LedgerLoop(Loop):
    """Closes the minutes that are over, from what the database says of them alone, so that a new
    leader goes on where the last one was. Where that takes long, because a hundred thousand leases
    are held, it closes more minutes at once, less often."""

    name = "ledger"
    by_look = True
    interval_seconds = PAUSE_SECONDS

    async def run_once(self) -> Summary:
        store = self._controller.store.ledger
        minutes = 0
        began = time.monotonic()
        for _ in range(MAX_BATCHES):
            heard = self._controller.leadership.hears_since
            facts = await store.read_span(hears_since=heard)
            if facts is None:
                break
            # In a thread, because a span after an outage may have millions of rows.
            rows = await asyncio.to_thread(close_span, facts)
            await store.write_ledger(facts, rows)
            minutes += (facts.until_ms - facts.since_ms) // 60_000
        self.interval_seconds = find_pause(time.monotonic() - began)
        return {"minutes": minutes} if minutes else {}


def find_pause(took_seconds: float) -> float:
    """Return the seconds until minutes are closed again, after closing some took so long."""
    return min(MOST_PAUSE_SECONDS, max(PAUSE_SECONDS, took_seconds / SHARE - took_seconds))


class PruneLedgerLoop(Loop):
    """Minutes and hours of the ledger that are older than their settings → deleted."""

    name = "prune_ledger"
    interval_seconds = 3600.0

    async def run_once(self) -> Summary:
        settings = await self._controller.settings.current()
        deleted = await self._controller.store.ledger.prune_ledger(
            settings.number("ledger_minutes_days"), settings.number("ledger_hours_days")
        )
        return {"deleted": deleted} if deleted else {}
