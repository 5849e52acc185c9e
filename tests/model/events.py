"""Events in memory."""

from collections.abc import Sequence

from holdfast.core.records import EventRecord
from holdfast.moves.events import format_event_id, parse_event_id
from tests.model.state import InMemory


class MemoryEvents(InMemory):
    """`PostgresEvents` in the model."""

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
