"""The events: a page, or a stream that goes on where its reader stopped."""

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page, check_job_id
from holdfast.controller.http.sse import StreamAnswer, event_bytes
from holdfast.controller.runtime.context import Controller
from holdfast.core.records import EventRecord
from holdfast.errors import ValidationError
from holdfast.moves.events import parse_event_id
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.operations.queries import EventsQuery

POLL_SECONDS = 1.0
MAX_TAIL = 1000
PAUSE_SECONDS = 0.02  # lets one read collect many commits


async def list_events(call: ApiCall) -> Response:
    """List events in the one order all readers see, as a stream on `Accept: text/event-stream`."""
    query = call.query(EventsQuery)
    if query.job is not None:
        check_job_id(query.job)
    resume = call.header("last-event-id")
    if resume is not None and not 1 <= len(resume) <= 256:
        raise ValidationError("the header Last-Event-ID is no event's id", field="Last-Event-ID")
    reader = EventFeed(call.store, query, resume or query.after)
    # The first page is read before the head goes out, so that a bad id is answered with a problem.
    told = await _find_loss(call.store, reader.after)
    first = await reader.read()
    if "text/event-stream" in (call.header("accept") or ""):
        return StreamAnswer(call.controller, _stream(call.controller, reader, [*told, *first]))
    return answer_page(first, reader.after if reader.more else None)


async def _find_loss(store: PostgresStore, after: str | None) -> list[EventRecord]:
    """Return an event that reports a gap, where events after `after` were deleted with the history.
    The event has the id `after`, so a reader that continues from it is told of the gap again."""
    pruned = None if after is None else await store.events.find_pruned()
    if after is None or pruned is None or parse_event_id(after) >= parse_event_id(pruned):
        return []
    message = (
        f"events between {after} and {pruned} were deleted with the history (history_days), so this "
        "stream has a gap; what is on record still can be read with `holdfast jobs` and `show`"
    )
    data = {"after": after, "until": pruned}
    at = await store.now()
    return [EventRecord(id=after, at=at, kind="events.pruned", message=message, data=data)]


class EventFeed:
    """A reader's place in the events. after: the id of the last event looked at, shown or not.
    more: True where more events may follow."""

    def __init__(self, store: PostgresStore, query: EventsQuery, after: str | None) -> None:
        self._store = store
        self._query = query
        self._tail = 0 if after else query.tail
        self._beginnings = tuple(k[:-1] for k in query.kind if k.endswith("*"))
        self._exact = () if self._beginnings else query.kind
        self._names = frozenset(k for k in query.kind if not k.endswith("*"))
        self.after = after
        self.more = False

    async def read(self) -> list[EventRecord]:
        """Return the next events that match, at most the query's `limit`; an empty list where there
        are none yet."""
        if self._tail:
            return await self._read_tail()
        found: list[EventRecord] = []
        while True:
            page = await self._store.events.read_events(
                self.after, limit=self._query.limit, job_id=self._query.job, kinds=self._exact
            )
            for event in page:
                if self._matches(event):
                    found.append(event)
                self.after = event.id
                if len(found) >= self._query.limit:
                    self.more = True
                    return found
            if len(page) < self._query.limit:
                self.more = False
                return found

    async def _read_tail(self) -> list[EventRecord]:
        # Beginnings of kinds are matched here, so the store is asked for more than are wanted.
        wanted, self._tail = self._tail, 0
        ask = MAX_TAIL if self._beginnings else wanted
        page = await self._store.events.read_events(
            None, limit=ask, job_id=self._query.job, kinds=self._exact, tail=ask
        )
        if page:
            self.after = page[-1].id
        return [event for event in page if self._matches(event)][-wanted:]

    def _matches(self, event: EventRecord) -> bool:
        return (
            not self._beginnings
            or event.kind in self._names
            or event.kind.startswith(self._beginnings)
        )


async def _stream(
    controller: Controller, reader: EventFeed, first: list[EventRecord]
) -> AsyncIterator[bytes]:
    wake = controller.wakes.topic("events")
    page = first
    while True:
        for event in page:
            yield event_bytes(event.kind, event, event.id)
        if controller.wakes.closing:
            return
        seen = wake.version
        page = await reader.read()
        if not page:
            await wake.wait(seen, POLL_SECONDS)
            yield b""
            await asyncio.sleep(PAUSE_SECONDS)
