"""Events in memory."""

from collections.abc import Collection, Sequence

from holdfast.core.records import EventRecord
from holdfast.moves.events import format_event_id, parse_event_id
from holdfast.store.memory.state import InMemory


class MemoryEvents(InMemory):
    """`EventStore` in memory."""

    async def read_events(
        self,
        after: str | None,
        *,
        limit: int = 500,
        job_id: str | None = None,
        kinds: Sequence[str] = (),
        tail: int = 0,
    ) -> list[EventRecord]:
        start = format_event_id(*parse_event_id(after))
        found = [
            e
            for e in self.state.events
            if e.id > start and job_id in (None, e.job_id) and (not kinds or e.kind in kinds)
        ]
        return found[-tail:] if after is None and tail > 0 else found[:limit]

    async def find_pruned(self) -> str | None:
        return self.state.pruned_event

    async def list_events_of(
        self, job_ids: Collection[str], *, last: int
    ) -> dict[str, list[EventRecord]]:
        asked = set(job_ids)
        found: dict[str, list[EventRecord]] = {}
        for event in self.state.events:
            if event.job_id is not None and event.job_id in asked:
                found.setdefault(event.job_id, []).append(event)
        return {job_id: events[-last:] for job_id, events in found.items()}
