"""Following the output of one call through lost connections, without I/O."""

from collections.abc import Iterator

import msgspec

from holdfast.client.follow import decode_event, stream_error, stream_headers
from holdfast.client.rest import RestCall
from holdfast.client.sse import ServerEvent
from holdfast.wire.calls import CallLogLine


class CallLogFollower:
    """A reader of the output of one call (CLIENT-1)."""

    def __init__(self, call: RestCall[None]) -> None:
        self.ended = False
        self._call = call
        self._attempt: int | None = None
        self._seen: dict[tuple[int, str, str], int] = {}

    def request(self) -> tuple[RestCall[None], dict[str, str]]:
        """Return the call and the headers of the next connection. The connection begins with the
        attempt that was being read, because another attempt may have begun meanwhile."""
        call, names = self._call, {name for name, _ in self._call.query}
        if self._attempt is not None and "attempt" not in names:
            name = "since" if "follow" in names else "attempt"
            query = (*call.query, (name, str(self._attempt)))
            call = RestCall(call.method, call.path, call.read, query)
        return call, stream_headers()

    def read_event(self, event: ServerEvent) -> Iterator[CallLogLine]:
        """Yield the new bytes of one event."""
        if event.kind == "attempt":
            self._attempt = decode_event(dict[str, int], event.data)["attempt"]
        elif event.kind == "log":
            line = decode_event(CallLogLine, event.data)
            key = (line.attempt, line.job, line.stream)
            known, end = self._seen.get(key, line.offset), line.offset + len(line.data)
            if end > known or line.gap:
                self._seen[key] = max(end, known)
                cut = max(0, known - line.offset)
                yield msgspec.structs.replace(
                    line, offset=line.offset + cut, data=line.data[cut:], gap=0 if cut else line.gap
                )
        elif event.kind == "end":
            self.ended = True
        elif event.kind == "problem":
            raise stream_error(event)
