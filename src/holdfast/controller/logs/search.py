"""The search of logs: a stream of the lines that match.

SEARCH-1  A search ends with its reader: what it does at most, once the reader has gone, is the page
          that it reads and looks at.
SEARCH-2  A search takes memory for the pages of one turn and for one line of each stream, however much
          there is to search, and time for `SEARCH_SECONDS`; it works in its turns (TURNS-1) alone.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.sse import StreamAnswer, event_bytes
from holdfast.controller.logs.pages import FoundLines, PageReader, plan_pages
from holdfast.controller.logs.pattern import compile_pattern
from holdfast.controller.runtime.context import Controller
from holdfast.core.calls.marks import CallMark
from holdfast.core.ids import ID_PATTERN
from holdfast.core.logs.scan import FoundLine
from holdfast.core.records import LogStreamRecord
from holdfast.errors import NotFound
from holdfast.wire.logs.search import LogFound, LogSearchEnd
from holdfast.wire.operations.queries import LogSearchQuery, is_on

JOBS_AT_ONCE = 200
BATCH_BYTES = 32 << 20
"""Kept bytes of the streams whose chunks are looked up together."""
BATCH_STREAMS = 500
SEARCH_SECONDS = 300.0


async def search_logs(call: ApiCall) -> Response:
    """Send the lines of logs that match."""
    query = call.query(LogSearchQuery)
    pattern = compile_pattern(
        query.pattern, ignore_case=is_on(query.ignore_case), fixed=is_on(query.fixed)
    )
    await _check_jobs(call.controller, query.job)
    reader = PageReader(call.store.log_search, pattern.find, query.context, query.max)
    search = LogSearch(call.controller, call.user, query, pattern.texts, reader)
    return StreamAnswer(call.controller, search.events())


async def _check_jobs(controller: Controller, job_ids: Sequence[str]) -> None:
    """Raise NotFound where there is no such job."""
    named = [job_id for job_id in job_ids if ID_PATTERN.fullmatch(job_id)]
    found = await controller.store.jobs.get_jobs(named)
    for job_id in job_ids:
        if job_id not in found:
            raise NotFound(f"there is no job {job_id[:64]!r}")


class LogSearch:
    """One search. texts: one of them is in each line that matches."""

    def __init__(
        self,
        controller: Controller,
        caller: str,
        query: LogSearchQuery,
        texts: Sequence[bytes],
        reader: PageReader,
    ) -> None:
        self._controller, self._caller, self._query = controller, caller, query
        self._store, self._texts, self._reader = controller.store.log_search, texts, reader
        since = query.since
        self._since = (
            None if since is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=since)
        )
        self._deadline = controller.clock() + SEARCH_SECONDS
        self._jobs = self._streams = self._kept = self._missing = 0

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the lines that match, and at the end what was searched."""
        async for found in self._find():
            yield b"".join([event_bytes("found", line) for line in await self._tell(found)])
        yield event_bytes("end", self._sum_up())

    async def _tell(self, found: FoundLines) -> list[LogFound]:
        if not found:
            return []
        places = [(stream, line.offset) for stream, line in found]
        async with self._controller.searches.wait_turn(self._caller):
            calls = await self._store.find_calls(places)
        return [
            _make_found(stream, line, calls.get(number))
            for number, (stream, line) in enumerate(found)
        ]

    def _sum_up(self) -> LogSearchEnd:
        reader = self._reader
        stopped = "max" if reader.left <= 0 else "time" if self._is_late() else ""
        return LogSearchEnd(
            matches=self._query.max - reader.left,
            jobs=self._jobs,
            streams=self._streams,
            kept_bytes=self._kept,
            read_bytes=reader.read_bytes,
            read_chunks=reader.read_chunks,
            missing_bytes=self._missing,
            stopped=stopped,
        )

    def _is_late(self) -> bool:
        return self._controller.clock() >= self._deadline

    def _is_over(self) -> bool:
        return self._reader.left <= 0 or self._is_late()

    async def _find(self) -> AsyncIterator[FoundLines]:
        """Yield what each turn found, which may be nothing."""
        async for jobs in self._list_jobs():
            which = self._query
            stream = None if which.stream == "both" else which.stream
            async with self._controller.searches.wait_turn(self._caller):
                streams = await self._store.list_searched_streams(
                    jobs, which.attempt, which.rank, stream
                )
            self._jobs += len({s.job_id for s in streams})
            for batch in _split_streams(streams):
                async for found in self._search_streams(batch):
                    yield found
                    if self._is_over():
                        return

    async def _list_jobs(self) -> AsyncIterator[Sequence[str]]:
        """Yield the jobs to search, some at a time."""
        named, before = self._query.job, None
        if named:
            for at in range(0, len(named), JOBS_AT_ONCE):
                yield named[at : at + JOBS_AT_ONCE]
            return
        while True:
            async with self._controller.searches.wait_turn(self._caller):
                jobs = await self._store.list_searched_jobs(
                    self._query.project,
                    self._since,
                    before,
                    array_id=self._query.array,
                    limit=JOBS_AT_ONCE,
                )
            if jobs:
                yield jobs
            if len(jobs) < JOBS_AT_ONCE:
                return
            before = jobs[-1]

    async def _search_streams(
        self, streams: Sequence[LogStreamRecord]
    ) -> AsyncIterator[FoundLines]:
        """Search streams to their ends."""
        self._streams += len(streams)
        self._kept += sum(s.kept for s in streams)
        self._missing += sum(s.size - s.kept for s in streams)
        starts = [0] * len(streams)
        while streams:
            async with self._controller.searches.wait_turn(self._caller):
                found = await self._store.find_chunks(streams, starts, self._texts, self._since)
            pages = plan_pages(found.spans, self._query.context)
            while pages:
                async with self._controller.searches.wait_turn(self._caller):
                    done, lines = await self._reader.read(pages)
                pages = pages[done:]
                yield lines
            left = [
                (stream, seen)
                for stream, seen in zip(streams, found.seen, strict=True)
                if seen is not None
            ]
            streams, starts = [stream for stream, _ in left], [seen for _, seen in left]
        async with self._controller.searches.wait_turn(self._caller):
            lines = await self._reader.finish()
        yield lines


def _make_found(stream: LogStreamRecord, line: FoundLine, mark: CallMark | None) -> LogFound:
    def count(data: bytes) -> int:
        return len(data.decode(errors="replace"))

    return LogFound(
        job=stream.job_id,
        attempt=stream.attempt,
        rank=stream.rank,
        stream=stream.stream,
        offset=line.offset,
        text=line.data.decode(errors="replace"),
        match=line.match,
        start=count(line.data[: line.start]),
        end=count(line.data[: line.end]),
        cut=line.cut,
        at=line.at,
        call="" if mark is None else f"{mark.set_id}.{mark.index}",
    )


def _split_streams(streams: Sequence[LogStreamRecord]) -> Iterator[list[LogStreamRecord]]:
    """Split streams into batches of about `BATCH_BYTES`."""
    batch: list[LogStreamRecord] = []
    size = 0
    for stream in streams:
        if batch and (size + stream.kept > BATCH_BYTES or len(batch) >= BATCH_STREAMS):
            yield batch
            batch, size = [], 0
        batch.append(stream)
        size += stream.kept
    if batch:
        yield batch
