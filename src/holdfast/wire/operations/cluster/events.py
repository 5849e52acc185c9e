"""The operations on events."""

from holdfast.core.records import EventRecord
from holdfast.wire.operations.operation import Operation, PageOf, Role
from holdfast.wire.operations.queries import EventsQuery

_SSE = ("text/event-stream",)
LIST_EVENTS = Operation(
    "GET", "/v1/events", Role.READ, "What happened, in the one order all readers see.",
    query=EventsQuery, answers={200: PageOf(EventRecord)}, media=("application/json", *_SSE),
    headers={"Last-Event-ID": "Where a stream goes on: the id of the last event seen."}
)  # fmt: skip
