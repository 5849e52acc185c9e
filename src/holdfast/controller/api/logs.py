"""The logs of a job: bytes, or a stream of events that follows it across its attempts.

-         Memory does not grow with a slow reader: one page of bytes is sent before the next is
          read.
FOLLOW-2  Nothing is sent twice and no loss is hidden: offsets only grow, and bytes that were
          dropped are a `gap`.
FOLLOW-3  A followed stream ends when the job and its log streams have ended, or ten seconds after
          the job's end. A controller that was down at the job's end counts the ten seconds from its
          own start.
"""

from collections import Counter
from collections.abc import AsyncIterator

from starlette.responses import Response

from holdfast.controller.api.jobs import find_job
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.queries import AttemptQuery, LogsQuery, is_on
from holdfast.controller.http.sse import StreamAnswer, event_bytes
from holdfast.controller.runtime.context import Controller
from holdfast.controller.sync.log_reads import HostReads
from holdfast.core.records import JobRecord, LogChunk, LogStreamRecord
from holdfast.wire.api import LogLine

PAGE_BYTES = 256 * 1024
POLL_SECONDS = 1.0
LATE_SECONDS = 10.0
STREAMS = ("stdout", "stderr")


async def list_streams(call: ApiCall) -> Response:
    """List the size of each log stream and which bytes of it are kept."""
    query = call.query(AttemptQuery)
    job = await find_job(call)
    return answer_page(await call.store.logs.list_log_streams(job.id, query.attempt))


async def get_logs(call: ApiCall) -> Response:
    """Send the bytes, or a stream of events with `follow=1`, `full=1` or `events=1`."""
    query = call.query(LogsQuery)
    job = await find_job(call)
    if is_on(query.follow) or is_on(query.full) or is_on(query.events):
        return StreamAnswer(call.controller, Follower(call.controller, job, query).lines())
    attempt = query.attempt or job.attempts
    streams = await _list_streams(call.controller, job.id, attempt, query)
    size = sum(s.size for s in streams)
    return StreamAnswer(
        call.controller,
        _read_all(call.controller, streams, query),
        media_type="application/octet-stream",
        headers={"Holdfast-Log-Size": str(size)},
        keep_alive=False,
    )


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


async def _read_chunks(
    controller: Controller, stream: LogStreamRecord, offset: int, hosts: HostReads | None = None
) -> AsyncIterator[LogChunk]:
    """Yield a stream's chunks from `offset` to its size, a page at a time. hosts: the reads from
    hosts' disks, used for bytes that the controller did not keep; None to skip these bytes."""
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
            if hosts is not None and chunk.offset > offset:
                async for found in hosts.fetch(stream, offset, chunk.offset):
                    yield found
            yield chunk
            offset = chunk.offset + len(chunk.data)
    if hosts is not None and offset < stream.size:
        async for found in hosts.fetch(stream, offset, stream.size):
            yield found


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
            for stream in streams:
                async for line in self._send_new(stream):
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

    async def _send_new(self, stream: LogStreamRecord) -> AsyncIterator[bytes]:
        place = (stream.attempt, stream.rank, stream.stream)
        if place not in self._offsets:
            self._offsets[place] = _begin(stream.size, self._query) if self._first else 0
        begin = self._offsets[place]
        async for chunk in _read_chunks(self._controller, stream, begin, self._hosts):
            line = LogLine(
                attempt=stream.attempt,
                rank=stream.rank,
                stream=stream.stream,
                offset=chunk.offset,
                data=chunk.data,
                gap=max(0, chunk.offset - self._offsets[place]),
                reason=self._why(chunk.offset - self._offsets[place]),
                at=chunk.at,
            )
            self._offsets[place] = chunk.offset + len(chunk.data)
            yield event_bytes("log", line)
        lost = stream.size - self._offsets[place]
        if stream.ended and lost > 0:  # no later byte would tell of them (FOLLOW-2)
            self._offsets[place] = stream.size
            yield event_bytes(
                "log",
                LogLine(
                    attempt=stream.attempt,
                    rank=stream.rank,
                    stream=stream.stream,
                    offset=stream.size,
                    data=b"",
                    gap=lost,
                    reason=self._why(lost),
                ),
            )

    def _why(self, gap: int) -> str:
        return self._hosts.reason if self._hosts is not None and gap > 0 else ""

    async def _may_go_on(self, streams: list[LogStreamRecord]) -> bool:
        """Return whether this attempt's streams have ended, or their last bytes had time to
        come."""
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
