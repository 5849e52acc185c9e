"""Following a stream through lost connections, without I/O.

CLIENT-1  A byte of a log is given to the reader once, over any number of connections: streams are
          deduplicated by (attempt, rank, stream, offset), so that asking again for too much is
          harmless.
CLIENT-2  An event is given once and none is left out: a stream is resumed from the last id seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from holdfast.client.late import LateModule
from holdfast.client.rest import RestCall, path_to, query_of, read_nothing, read_problem
from holdfast.client.sse import ServerEvent
from holdfast.core.records import EventRecord, JobRecord
from holdfast.errors import (
    Forbidden,
    HoldfastError,
    NotFound,
    Unauthorized,
    Unavailable,
    ValidationError,
)
from holdfast.wire.logs.lines import LogLine

if TYPE_CHECKING:
    from holdfast.wire import api as wire
    from holdfast.wire.operations.work import jobs as on_jobs
else:
    wire = LateModule("holdfast.wire.api")
    on_jobs = LateModule("holdfast.wire.operations.work.jobs")

T = TypeVar("T")
Taken = TypeVar("Taken", covariant=True)

FOLLOW_RETRY_SECONDS = 300.0


@functools.cache
def _decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return a function that makes its decoder at the first use, because making one takes 5 ms,
    which most commands save."""
    return msgspec.json.Decoder(kind).decode


class ReconnectDelays:
    """The delays after a lost connection: short first, then about a second, `limit_seconds` in
    all."""

    def __init__(self, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self.waited_seconds, self.tries = 0.0, 0

    def next_delay(self, chance: float) -> float | None:
        """Return the seconds to wait before the next try, None when it is time to give up.

        chance: a number in [0, 1) that spreads callers.
        """
        if self.waited_seconds >= self.limit_seconds:
            return None
        delay = min(0.05 * 2.0**self.tries, 1.0) * (0.75 + 0.5 * chance)
        self.tries += 1
        self.waited_seconds += delay
        return delay

    def succeed(self) -> None:
        """Begin with the shortest delay again, because the connection works."""
        self.tries = 0
        self.waited_seconds = 0.0


class StreamFollower(Protocol[Taken]):
    """A reader of one stream, over as many connections as it takes."""

    @property
    def ended(self) -> bool:
        """Return whether the stream is over."""

    def request(self) -> tuple[RestCall[Any], dict[str, str]]:
        """Return the call and the headers of the next connection."""

    def read_event(self, event: ServerEvent) -> Iterator[Taken]:
        """Yield the news of one event. Raises the HoldfastError that a `problem` event carries."""


class Follow(msgspec.Struct, Generic[T], frozen=True):
    """A stream to be followed; a lost connection is tried again for `retry_seconds`."""

    follower: StreamFollower[T]
    retry_seconds: float = FOLLOW_RETRY_SECONDS


def follow_log(
    job_id: str, *, full: bool = False, wait: bool = True, **query: object
) -> RestCall[None]:
    """Return the call for the stream of a job's log; `LogFollower` reads it."""
    path = path_to(on_jobs.GET_LOGS, job_id)
    flags = {"follow": wait or None, "full": full or None, "events": not (wait or full) or None}
    return RestCall("GET", path, read_nothing, query_of(**query, **flags))


class LogFollower:
    """A reader of one job's log.

    After a lost connection it continues with the attempt that was being read, because that attempt
    may have written more before a requeue that this reader missed (CLIENT-1).
    """

    def __init__(self, call: RestCall[None]) -> None:
        self.ended = False
        self._call = call
        self._seen: dict[tuple[int, int, str], int] = {}
        self._attempt: int | None = None

    def request(self) -> tuple[RestCall[None], dict[str, str]]:
        """Return the call and the headers of the next connection."""
        call, given = self._call, dict(self._call.query)
        if self._attempt is not None:
            if self._seen:  # another tail would cut a hole, or repeat bytes
                given.pop("tail", None)
            if "attempt" not in given:
                given["since" if "follow" in given else "attempt"] = str(self._attempt)
            offset = self._resume_offset()
            if offset:
                given["offset"] = str(offset)
            call = RestCall(call.method, call.path, call.read, tuple(given.items()))
        return call, stream_headers()

    def _resume_offset(self) -> int:
        """Return the offset up to which both streams of the attempt were read."""
        known = [end for (attempt, _, _), end in self._seen.items() if attempt == self._attempt]
        ranks = {rank for attempt, rank, _ in self._seen if attempt == self._attempt}
        return min(known) if len(known) == 2 and len(ranks) == 1 else 0

    def read_event(self, event: ServerEvent) -> Iterator[LogLine | JobRecord]:
        """Yield the news of one event: new bytes of a stream, or the job's new state."""
        if event.kind == "log":
            line = decode_event(LogLine, event.data)
            self._attempt = line.attempt
            trimmed = self._trim(line)
            if trimmed is not None:
                yield trimmed
        elif event.kind == "state":
            job = decode_event(JobRecord, event.data)
            if self._attempt is None:
                given = dict(self._call.query)
                self._attempt = int(given.get("since", 0)) or max(1, job.attempts)
            yield job
        elif event.kind == "end":
            self.ended = True
            yield decode_event(JobRecord, event.data)
        elif event.kind == "problem":
            raise stream_error(event)

    def _trim(self, line: LogLine) -> LogLine | None:
        key = (line.attempt, line.rank, line.stream)
        known = self._seen.get(key)
        end = line.offset + len(line.data)
        if known is None or line.offset > known:
            # A stream may start in its middle (a tail); only a later jump is a gap to report.
            gap = line.gap if known is None else max(line.gap, line.offset - known)
            self._seen[key] = end
            return msgspec.structs.replace(line, gap=gap)
        if end <= known:
            return None
        self._seen[key] = end
        return msgspec.structs.replace(
            line, offset=known, data=line.data[known - line.offset :], gap=0
        )


class OutputFollower:
    """A reader of one job's log that yields the bytes alone. whole: True to raise an error where
    bytes are missing."""

    def __init__(self, call: RestCall[None], *, whole: bool = False) -> None:
        self._log = LogFollower(call)
        self._whole = whole
        self.request = self._log.request

    @property
    def ended(self) -> bool:
        """Return whether the job has ended."""
        return self._log.ended

    def read_event(self, event: ServerEvent) -> Iterator[bytes]:
        """Yield the new bytes of one event."""
        for item in self._log.read_event(event):
            if isinstance(item, LogLine):
                if self._whole and item.gap:
                    missing = f"{item.gap} bytes of {item.stream} before offset {item.offset}"
                    raise NotFound(f"{missing} are missing: {item.reason}", code="log_gap")
                yield item.data


class EventFollower:
    """A reader of the events."""

    ended = False

    def __init__(self, call: RestCall[Any]) -> None:
        self._call = call
        self._last_id: str | None = None

    def request(self) -> tuple[RestCall[Any], dict[str, str]]:
        """Return the call and the headers of the next connection."""
        if self._last_id is None:
            return self._call, stream_headers()
        return self._call.at(self._last_id), stream_headers(self._last_id)

    def read_event(self, event: ServerEvent) -> Iterator[EventRecord]:
        """Yield the record that the event carries, if any."""
        if event.kind == "problem":
            raise stream_error(event)
        try:
            record = _decoder(EventRecord)(event.data)
        except msgspec.DecodeError:
            return  # a kind of message this version does not know
        self._last_id = record.id
        yield record


def stream_headers(last_id: str | None = None) -> dict[str, str]:
    """Return the headers of a request for a stream."""
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    if last_id:
        headers["Last-Event-ID"] = last_id
    return headers


def stream_error(event: ServerEvent) -> HoldfastError:
    """Return the error that a `problem` event carries; its code stands for the missing status."""
    try:
        code = msgspec.json.decode(event.data, type=wire.Problem).code
    except msgspec.DecodeError:
        code = "error"
    statuses = {
        kind.code: kind.status for kind in (NotFound, ValidationError, Forbidden, Unauthorized)
    }
    return read_problem(statuses.get(code, Unavailable.status), event.data)


def decode_event(kind: type[T], data: bytes) -> T:
    """Return an event's data as `kind`. Raises HoldfastError."""
    key: Any = kind  # a type of structs can be hashed, which the type of its type does not say
    try:
        found: T = _decoder(key)(data)
    except msgspec.DecodeError as error:
        raise HoldfastError(
            f"the controller's stream is not understood ({error})", code="bad_answer"
        ) from error
    return found
