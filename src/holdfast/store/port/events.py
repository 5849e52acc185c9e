"""Events: the append-only record."""

from collections.abc import Collection, Sequence
from typing import Protocol

from holdfast.core.records import EventRecord


class EventStore(Protocol):
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

    async def find_pruned(self) -> str | None:
        """Return the id of the last event that was deleted with old history (HISTORY-1), or None. A
        reader that stopped before it may have missed events."""

    async def list_events_of(
        self, job_ids: Collection[str], *, last: int
    ) -> dict[str, list[EventRecord]]:
        """Return each job's last `last` events, oldest first; jobs without events are missing."""
