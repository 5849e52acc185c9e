"""Events in PostgreSQL."""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from holdfast.core.records import EventRecord
from holdfast.moves.events import format_event_id, parse_event_id
from holdfast.store.postgres.connection.parts import OnSession


class PostgresEvents(OnSession):
    """Events in an order that never changes (STORE-4)."""

    async def read_events(
        self,
        after: str | None,
        *,
        limit: int = 500,
        job_id: str | None = None,
        kinds: Sequence[str] = (),
        tail: int = 0,
    ) -> list[EventRecord]:
        """Return events after the id `after` (None: from the start; with `tail` n: the last n)."""
        common = {"job_id": job_id, "kinds": list(kinds) or None}
        if after is None and tail > 0:
            rows = await self.session.rows("tail_events", **common, limit=tail)
        else:
            tx, number = parse_event_id(after)
            params = {**common, "tx": str(tx), "id": number, "limit": limit}
            rows = await self.session.rows("read_events", **params)
        return [make_event(row) for row in rows]

    async def find_pruned(self) -> str | None:
        """Return the id of the last event that was deleted with old history (HISTORY-1), or None. A
        reader that stopped before that event may have missed some."""
        (row,) = await self.session.rows("find_pruned_event")
        last = int(row["tx"]), int(row["id"])
        return None if last == (0, 0) else format_event_id(*last)

    async def list_events_of(
        self, job_ids: Collection[str], *, last: int
    ) -> dict[str, list[EventRecord]]:
        """Return the last `last` events of each job, oldest first; jobs without events are
        missing."""
        params = {"ids": list(dict.fromkeys(job_ids)), "last": last}
        found: dict[str, list[EventRecord]] = {}
        for row in await self.session.rows("read_events_of", **params):
            found.setdefault(row["job_id"], []).append(make_event(row))
        return found


def make_event(row: dict[str, Any]) -> EventRecord:
    """Return the record of an event's row."""
    row.pop("place", None)
    row["id"] = format_event_id(int(row.pop("tx")), row["id"])
    return msgspec.convert(row, EventRecord)
