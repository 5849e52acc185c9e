"""Reading a search of logs through lost connections, without I/O."""

from collections.abc import Iterator

from holdfast.client.follow import decode_event, stream_error, stream_headers
from holdfast.client.rest import RestCall
from holdfast.client.sse import ServerEvent
from holdfast.wire.logs.search import LogFound, LogSearchEnd


class LogSearchFollower:
    """A reader of one search of logs. After a lost connection the search begins anew, and lines
    that were given are not given again (CLIENT-1)."""

    def __init__(self, call: RestCall[None]) -> None:
        self.ended = False
        self._call = call
        self._seen: set[tuple[str, int, int, str, int]] = set()

    def request(self) -> tuple[RestCall[None], dict[str, str]]:
        """Return the call and the headers of the next connection."""
        return self._call, stream_headers()

    def read_event(self, event: ServerEvent) -> Iterator[LogFound | LogSearchEnd]:
        """Yield the line that an event carries, or at the end what was searched."""
        if event.kind == "found":
            line = decode_event(LogFound, event.data)
            key = (line.job, line.attempt, line.rank, line.stream, line.offset)
            if key not in self._seen:
                self._seen.add(key)
                yield line
        elif event.kind == "end":
            self.ended = True
            yield decode_event(LogSearchEnd, event.data)
        elif event.kind == "problem":
            raise stream_error(event)
