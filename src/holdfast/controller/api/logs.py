"""The logs of a job: bytes, or a stream of events that follows it across its attempts.

FOLLOW-1  Memory does not grow with the reader's slowness: one page of bytes is read, sent, and only
          then the next.
FOLLOW-2  Nothing is sent twice and no loss is hidden: offsets only grow, and bytes that were
          dropped are a `gap`.
FOLLOW-3  It ends: when the job has ended and its streams have, or ten seconds after the job ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

from starlette.responses import Response

from holdfast.controller.api.jobs import find_job
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.queries import AttemptQuery, LogsQuery, is_on
from holdfast.controller.http.sse import StreamAnswer, event_bytes
from holdfast.controller.runtime.context import Controller
from holdfast.core.records import JobRecord, LogStreamRecord
from holdfast.wire.api import LogLine

PAGE_BYTES = 256 * 1024
POLL_SECONDS = 1.0
LATE_SECONDS = 10.0
STREAMS = ("stdout", "stderr")


async def list_streams(call: ApiCall) -> Response:
    """How far each stream goes and what is kept of it."""
    query = call.query(AttemptQuery)
    job = await find_job(call)
    return answer_page(await call.controller.store.logs.list_log_streams(job.id, query.attempt))


async def get_logs(call: ApiCall) -> Response:
    """The bytes, or the stream of events with `follow=1`."""
    query = call.query(LogsQuery)
    job = await find_job(call)
    if is_on(query.follow):
        return StreamAnswer(call.controller, Follower(call.controller, job, query).lines())
    attempt = query.attempt or job.attempts
    streams = [
        s
        for s in await call.controller.store.logs.list_log_streams(job.id, attempt)
        if _wanted(s, query)
    ]
    streams.sort(key=lambda s: (s.rank, STREAMS.index(s.stream)))
    size = sum(s.size for s in streams)
    return StreamAnswer(
        call.controller,
        _read_all(call.controller, streams, query),
        media_type="application/octet-stream",
        headers={"Holdfast-Log-Size": str(size)},
        keep_alive=False,
    )


def _wanted(stream: LogStreamRecord, query: LogsQuery) -> bool:
    return query.stream in ("both", stream.stream) and query.rank in (None, stream.rank)


def _begin(size: int, query: LogsQuery) -> int:
    return query.offset if query.tail is None else max(0, size - query.tail)


async def _read_all(
    controller: Controller, streams: list[LogStreamRecord], query: LogsQuery
) -> AsyncIterator[bytes]:
    for stream in streams:
        offset = _begin(stream.size, query)
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
                yield chunk.data
            offset = chunks[-1].offset + len(chunks[-1].data)


class Follower:
    """One reader's place in a job's logs."""

    def __init__(self, controller: Controller, job: JobRecord, query: LogsQuery) -> None:
        self._controller = controller
        self._job = job
        self._query = query
        self._attempt = query.attempt or max(1, job.attempts)
        self._offsets: dict[tuple[int, int, str], int] = {}
        self._first = True
        self._late: float | None = None

    async def lines(self) -> AsyncIterator[bytes]:
        """SSE events until the job's end."""
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
            streams = await self._list_streams()
            for stream in streams:
                async for line in self._send_new(stream):
                    moved = True
                    yield line
            self._first = False
            if self._attempt < job.attempts and self._query.attempt is None:
                if self._may_go_on(streams):
                    self._attempt += 1
                    self._late = None
                    continue
            elif self._is_over(job, streams):
                yield event_bytes("end", job)
                return
            if not moved and not controller.wakes.closing and logs.version + events.version == seen:
                # One future would be woken by "logs" alone; state changes come with the poll at the
                # latest.
                await logs.wait(logs.version, POLL_SECONDS)
                yield b""  # lets the stream's writer send a keep-alive and see a closing server

    async def _list_streams(self) -> list[LogStreamRecord]:
        found = await self._controller.store.logs.list_log_streams(self._job.id, self._attempt)
        return sorted(
            (s for s in found if _wanted(s, self._query)),
            key=lambda s: (s.rank, STREAMS.index(s.stream)),
        )

    async def _send_new(self, stream: LogStreamRecord) -> AsyncIterator[bytes]:
        place = (stream.attempt, stream.rank, stream.stream)
        if place not in self._offsets:
            self._offsets[place] = _begin(stream.size, self._query) if self._first else 0
        while self._offsets[place] < stream.size:
            offset = self._offsets[place]
            chunks = await self._controller.store.logs.read_log(
                stream.job_id,
                stream.attempt,
                stream.rank,
                stream.stream,
                offset,
                limit_bytes=PAGE_BYTES,
            )
            if not chunks:
                return
            for chunk in chunks:
                gap = max(0, chunk.offset - offset)
                offset = chunk.offset + len(chunk.data)
                self._offsets[place] = offset
                yield event_bytes(
                    "log",
                    LogLine(
                        attempt=stream.attempt,
                        rank=stream.rank,
                        stream=stream.stream,
                        offset=chunk.offset,
                        data=chunk.data,
                        gap=gap,
                    ),
                )

    def _may_go_on(self, streams: list[LogStreamRecord]) -> bool:
        """True when this attempt's streams are at their end, or their last bytes have had time
        enough to come."""
        if self._all_known(streams) and all(s.ended for s in streams):
            return True
        return self._waited_long_enough()

    def _all_known(self, streams: list[LogStreamRecord]) -> bool:
        """True when every stream has been heard of: one that is not there yet may be on its way
        behind another's end."""
        ranks = range(self._job.tasks) if self._query.rank is None else (self._query.rank,)
        expected = len(STREAMS) if self._query.stream == "both" else 1
        counts = Counter(s.rank for s in streams)
        return all(counts[rank] == expected for rank in ranks)

    def _is_over(self, job: JobRecord, streams: list[LogStreamRecord]) -> bool:
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
        return job.attempts == 0 or self._waited_long_enough()

    def _waited_long_enough(self) -> bool:
        now = self._controller.clock()
        self._late = self._late or now + LATE_SECONDS
        return now >= self._late
