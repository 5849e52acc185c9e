"""Server-sent events (`text/event-stream` of the HTML standard): bytes in, events out, no I/O."""

import msgspec

from holdfast.errors import TooLarge

MAX_EVENT_BYTES = 16 * 1024 * 1024


class ServerEvent(msgspec.Struct, frozen=True):
    """One server-sent event. id: of this event, or of the last event that had one, as the standard
    wants it."""

    kind: str
    data: bytes
    id: str | None


class EventStreamReader:
    """Collects lines into events. Keep-alive comments are dropped."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._kind = "message"
        self._data: list[bytes] = []
        self._id: str | None = None

    def feed(self, data: bytes) -> list[ServerEvent]:
        """Parse bytes; return the events that they complete. Raises TooLarge when one event never
        ends."""
        self._rest += data
        if len(self._rest) > MAX_EVENT_BYTES:
            raise TooLarge(f"one event of the stream is over {MAX_EVENT_BYTES} bytes")
        cut = self._rest.rfind(b"\n")
        if cut < 0:
            return []
        lines = bytes(self._rest[:cut]).split(b"\n")
        del self._rest[: cut + 1]
        events = []
        for line in lines:
            event = self._take_line(line.removesuffix(b"\r"))
            if event is not None:
                events.append(event)
        return events

    def _take_line(self, line: bytes) -> ServerEvent | None:
        if not line:
            kind, data = self._kind, self._data
            self._kind, self._data = "message", []
            return ServerEvent(kind, b"\n".join(data), self._id) if data else None
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._kind = value.decode(errors="replace")
        elif name == b"data":
            self._data.append(value)
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        return None
