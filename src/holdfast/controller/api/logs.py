"""The logs of a job: bytes, or a stream of events that follows it across its attempts.

- Memory does not grow with a slow reader: one page of bytes is sent before the next is
  read.
FOLLOW-2  Nothing is sent twice and no loss is hidden: offsets only grow, and bytes that were
          dropped are a `gap`.
FOLLOW-3  A followed stream ends when the job and its log streams have ended, or ten seconds after
          the job's end. A controller that was down at the job's end counts the ten seconds from its
          own start.
FOLLOW-4  The streams of one attempt are sent by the time at which their bytes came.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from starlette.responses import Response

from holdfast.controller.api.jobs import find_job
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.sse import StreamAnswer, event_bytes
from holdfast.controller.runtime.context import Controller
from holdfast.controller.sync.log_reads import HostReads
from holdfast.core.logs.interleave import interleave
from holdfast.core.logs.scan import LogPiece
from holdfast.core.records import JobRecord, LogChunk, LogStreamRecord
from holdfast.errors import ValidationError
from holdfast.store.postgres.logs.search import LogSpan
from holdfast.wire.logs.lines import LogLine
from holdfast.wire.operations.queries import AttemptQuery, LogsQuery, is_on

PAGE_BYTES = 256 * 1024
POLL_SECONDS = 1.0
LATE_SECONDS = 10.0
STREAMS = ("stdout", "stderr")
KEYS_AT_ONCE = 8192
"""Chunks of all streams whose times are put in order at once."""
MIN_KEYS = 16


async def list_streams(call: ApiCall) -> Response:
    """List the size of each log stream and which bytes of it are kept."""
    query = call.query(AttemptQuery)
    job = await find_job(call)
    return answer_page(await call.store.logs.list_log_streams(job.id, query.attempt))


LAST_BYTES_SECONDS = 1.0
"""How long after a job's end a reader waits for its last bytes, which its host may never send."""
LOOK_SECONDS = 0.1


async def get_logs(call: ApiCall) -> Response:
    """Send the bytes, or a stream of events with `follow=1`, `full=1` or `events=1`."""
    query = call.query(LogsQuery)
    job = await find_job(call)
    timed = (query.begin_us, query.until_us) != (None, None)
    if timed and (not is_on(query.events) or is_on(query.follow) or is_on(query.full)):
        raise ValidationError("begin_us and until_us go with events=1 alone", field="query")
    if is_on(query.follow) or is_on(query.full) or is_on(query.events):
        return StreamAnswer(call.controller, Follower(call.controller, job, query).lines())
    streams = await _list_whole_streams(call.controller, job, query)
    size = sum(s.size for s in streams)
    return StreamAnswer(
        call.controller,
        _read_all(call.controller, streams, query),
        media_type="application/octet-stream",
        headers={"Holdfast-Log-Size": str(size)},
        keep_alive=False,
    )


async def _list_whole_streams(
    controller: Controller, job: JobRecord, query: LogsQuery
) -> list[LogStreamRecord]:
    """Return the streams of an attempt. Of a job that has just ended, whose last bytes come beside the
    report of its end, return them once they are whole, or `LAST_BYTES_SECONDS` after the end."""
    attempt = query.attempt or job.attempts
    topic = controller.wakes.topic("logs")
    while True:
        seen = topic.version
        streams = await _list_streams(controller, job.id, attempt, query)
        whole = bool(streams) and all(stream.ended for stream in streams)
        if whole or job.ended_at is None or attempt != job.attempts:
            return streams
        left = LAST_BYTES_SECONDS - (datetime.now(UTC) - job.ended_at).total_seconds()
        if left <= 0:
            return streams
        await topic.wait(seen, min(left, LOOK_SECONDS))


async def _list_streams(
    controller: Controller, job_id: str, attempt: int, query: LogsQuery
) -> list[LogStreamRecord]:
    """Return the log streams that the query asks for, in the order of their ranks."""
    wanted = [
        s
        for s in await controller.store.logs.list_log_streams(job_id, attempt)
        if query.stream in ("both", s.stream) and query.rank in (None, s.rank)
    ]
    return sorted(wanted, key=lambda s: (s.rank, STREAMS.index(s.stream)))


def _begin(size: int, query: LogsQuery) -> int:
    return query.offset if query.tail is None else max(0, size - query.tail)


def _moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _place_of(stream: LogStreamRecord) -> tuple[int, int, str]:
    return stream.attempt, stream.rank, stream.stream


def _split_pages(spans: Sequence[LogSpan]) -> Iterator[list[LogSpan]]:
    """Split spans into pages of about `PAGE_BYTES`."""
    page: list[LogSpan] = []
    size = 0
    for span in spans:
        if page and size + span.end - span.start > PAGE_BYTES:
            yield page
            page, size = [], 0
        page.append(span)
        size += span.end - span.start
    if page:
        yield page


async def _read_chunks(
    controller: Controller, stream: LogStreamRecord, offset: int
) -> AsyncIterator[LogChunk]:
    """Yield a stream's chunks from `offset` to its size, a page at a time."""
    while offset < stream.size:
        chunks = await controller.store.logs.read_log(
            stream.job_id,
            stream.attempt,
            stream.rank,
            stream.stream,
            offset,
            limit_bytes=PAGE_BYTES,
        )
        if not chunks:
            break
        for chunk in chunks:
            yield chunk
            offset = chunk.offset + len(chunk.data)


async def _read_all(
    controller: Controller, streams: list[LogStreamRecord], query: LogsQuery
) -> AsyncIterator[bytes]:
    for stream in streams:
        async for chunk in _read_chunks(controller, stream, _begin(stream.size, query)):
            yield chunk.data


class Follower:
    """One reader's place in a job's logs."""

    def __init__(self, controller: Controller, job: JobRecord, query: LogsQuery) -> None:
        self._controller = controller
        self._job = job
        self._query = query
        self._attempt = query.attempt or query.since or max(1, job.attempts)
        self._offsets: dict[tuple[int, int, str], int] = {}
        self._hosts = HostReads(controller) if is_on(query.full) else None
        self._first = True
        self._late: float | None = None

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield SSE events until the job's end; without `follow`, only the bytes that are there
        now."""
        controller = self._controller
        logs, events = controller.wakes.topic("logs"), controller.wakes.topic("events")
        yield event_bytes("state", self._job)
        shown = self._job.revision, self._job.state, self._job.attempts
        while True:
            seen = logs.version + events.version
            job = await controller.store.jobs.get_job(self._job.id)
            if (job.revision, job.state, job.attempts) != shown:
                shown = job.revision, job.state, job.attempts
                yield event_bytes("state", job)
            self._job = job
            moved = False
            streams = await _list_streams(controller, job.id, self._attempt, self._query)
            streams = await self._cut(streams)
            async for line in self._send_new(streams):
                moved = True
                yield line
            self._first = False
            if not is_on(self._query.follow):
                yield event_bytes("end", job)
                return
            if self._attempt < job.attempts and self._query.attempt is None:
                if await self._may_go_on(streams):
                    self._attempt += 1
                    self._late = None
                    continue
            elif await self._is_over(job, streams):
                yield event_bytes("end", job)
                return
            if not moved and not controller.wakes.closing and logs.version + events.version == seen:
                # "logs" is told of bytes and of ends; any other change is seen by the poll at the latest.
                await logs.wait(logs.version, POLL_SECONDS)
                yield b""  # lets the writer send a keep-alive and notice a closing server

    async def _cut(self, streams: list[LogStreamRecord]) -> list[LogStreamRecord]:
        """Return the streams as they were at the query's `until_us`, and remember where they were at its
        `begin_us`."""
        store, query = self._controller.store.log_search, self._query
        if query.until_us is not None and streams:
            ends = await store.find_ends(streams, _moment(query.until_us), included=True)
            pairs = zip(streams, ends, strict=True)
            streams = [msgspec.structs.replace(s, size=end, ended=False) for s, end in pairs]
        if query.begin_us is not None and streams:
            starts = await store.find_ends(streams, _moment(query.begin_us), included=False)
            for stream, start in zip(streams, starts, strict=True):
                begin = max(start, _begin(stream.size, query))
                self._offsets.setdefault(_place_of(stream), begin)
        return streams

    async def _send_new(self, streams: Sequence[LogStreamRecord]) -> AsyncIterator[bytes]:
        """Yield what the reader has not yet been sent of streams, by the time at which it came."""
        for stream in streams:
            if _place_of(stream) not in self._offsets:
                begin = _begin(stream.size, self._query) if self._first else 0
                self._offsets[_place_of(stream)] = begin
        store, fresh = self._controller.store.log_search, list(streams)
        while fresh := [s for s in fresh if self._offsets[_place_of(s)] < s.size]:
            limit = max(MIN_KEYS, KEYS_AT_ONCE // len(fresh))
            starts = [self._offsets[_place_of(s)] for s in fresh]
            keys = interleave(await store.list_keys(fresh, starts, limit=limit), limit)
            spans = [
                LogSpan(fresh[number], key.start, key.end)
                for number, key in keys
                if key.start < fresh[number].size
            ]
            if not spans:
                break
            for page in _split_pages(spans):
                for span, found in zip(page, await store.read_spans(page), strict=True):
                    for piece in found:
                        async for line in self._send_piece(span.stream, piece):
                            yield line
        for stream in streams:
            async for line in self._send_rest(stream):
                yield line

    async def _send_piece(self, stream: LogStreamRecord, piece: LogPiece) -> AsyncIterator[bytes]:
        """Yield a piece, after what the host has of the bytes that are missing before it."""
        known = self._offsets[_place_of(stream)]
        if self._hosts is not None and piece.offset > known:
            async for chunk in self._hosts.fetch(stream, known, piece.offset):
                yield self._tell(stream, chunk.offset, chunk.data, chunk.at)
            known = self._offsets[_place_of(stream)]
        data = piece.data[max(0, known - piece.offset) :]
        if data:
            yield self._tell(stream, max(piece.offset, known), data, piece.at)

    async def _send_rest(self, stream: LogStreamRecord) -> AsyncIterator[bytes]:
        """Yield what the host has of the bytes that are missing at a stream's end, or how many are
        lost there: no later byte would tell of them (FOLLOW-2)."""
        known = self._offsets[_place_of(stream)]
        if self._hosts is not None and known < stream.size:
            async for chunk in self._hosts.fetch(stream, known, stream.size):
                yield self._tell(stream, chunk.offset, chunk.data, chunk.at)
        if stream.ended and self._offsets[_place_of(stream)] < stream.size:
            yield self._tell(stream, stream.size, b"", None)

    def _tell(
        self, stream: LogStreamRecord, offset: int, data: bytes, at: datetime | None
    ) -> bytes:
        """Return the server-sent event that carries bytes of a log, and note how far the reader has
        got."""
        gap = max(0, offset - self._offsets[_place_of(stream)])
        self._offsets[_place_of(stream)] = offset + len(data)
        line = LogLine(
            attempt=stream.attempt,
            rank=stream.rank,
            stream=stream.stream,
            offset=offset,
            data=data,
            gap=gap,
            reason=self._why(gap),
            at=at,
        )
        return event_bytes("log", line)

    def _why(self, gap: int) -> str:
        return self._hosts.reason if self._hosts is not None and gap > 0 else ""

    async def _may_go_on(self, streams: list[LogStreamRecord]) -> bool:
        """Return whether the reader may go on to the next attempt: the streams of this attempt have
        ended, or their last bytes had time to come."""
        ended = self._all_known(streams) and all(s.ended for s in streams)
        return ended or await self._had_time()

    def _all_known(self, streams: list[LogStreamRecord]) -> bool:
        """Return whether every stream is known. A stream may become known only after another one's
        end."""
        ranks = range(self._job.tasks) if self._query.rank is None else (self._query.rank,)
        expected = len(STREAMS) if self._query.stream == "both" else 1
        counts = Counter(s.rank for s in streams)
        return all(counts[rank] == expected for rank in ranks)

    async def _is_over(self, job: JobRecord, streams: list[LogStreamRecord]) -> bool:
        attempt_over = job.state.terminal or (
            self._query.attempt is not None and self._attempt < job.attempts
        )
        if not attempt_over:
            self._late = None
            return False
        if self._all_known(streams) and all(
            s.ended and self._offsets.get((s.attempt, s.rank, s.stream), 0) >= s.size
            for s in streams
        ):
            return True
        return self._attempt > job.attempts or await self._had_time()

    async def _had_time(self) -> bool:
        """Return whether the last bytes of an ended attempt had time to come. The time counts from
        the attempt's end or from this controller's start, whichever is later, so that a restart
        cuts nothing off."""
        now = self._controller.clock()
        if self._late is None:
            served = now - self._controller.began_at
            self._late = now + LATE_SECONDS - min(served, await self._find_age())
        return now >= self._late

    async def _find_age(self) -> float:
        """Return the seconds since the attempt's end, 0 where that is not known."""
        store, place = self._controller.store, (self._job.id, self._attempt)
        found = (await store.jobs.get_attempts([place])).get(place)
        if found is None or found.ended_at is None:
            return 0.0
        return (await store.now() - found.ended_at).total_seconds()
