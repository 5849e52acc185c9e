"""Minutes that are over → rows of the ledger; old rows → deleted."""

import asyncio

from holdfast.controller.loops.silhouette import MAX_BATCHES, Loop, Summary
from holdfast.core.ledger.close import close_span


class LedgerLoop(Loop):
    """Closes the minutes that are over, from what the database says of them alone, so that a new
    leader goes on where the last one was."""

    name = "ledger"
    interval_seconds = 10.0

    async def run_once(self) -> Summary:
        store = self._controller.store.ledger
        minutes = 0
        for _ in range(MAX_BATCHES):
            heard = self._controller.leadership.hears_since
            facts = await store.read_span(hears_since=heard)
            if facts is None:
                break
            # In a thread, because a span after an outage may have millions of rows.
            rows = await asyncio.to_thread(close_span, facts)
            await store.write_ledger(facts, rows)
            minutes += (facts.until_ms - facts.since_ms) // 60_000
        return {"minutes": minutes} if minutes else {}


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
