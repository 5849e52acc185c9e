"""The pages of a search: spans of streams that are read by one statement and looked at in a thread."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, ParamSpec, TypeVar

from holdfast.core.logs.scan import (
    LINE_BYTES,
    Finder,
    FoundLine,
    LogPiece,
    Scanner,
    find_line_start,
)
from holdfast.core.records import LogStreamRecord
from holdfast.store.postgres.logs.search import LogSpan, PostgresLogSearch

P = ParamSpec("P")
T = TypeVar("T")
PAGE_BYTES = 1 << 20
MAX_SPANS = 1000
TURN_SECONDS = 0.25
READ_AHEAD = 2
"""Pages that are read while another is, on connections of their own."""
FIRST_BYTES = 4096
"""As many bytes are read at first for the beginning of a line, or for its end."""
LONGEST_BYTES = 16 << 20
"""As many bytes are read at most for the end of a line."""
FoundLines = list[tuple[LogStreamRecord, FoundLine]]


async def _in_thread(work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Run work in a thread. A reader that leaves waits for the thread, so that no thread works outside
    of a turn."""
    running = asyncio.create_task(asyncio.to_thread(work, *given, **named))
    try:
        return await asyncio.shield(running)
    finally:
        await asyncio.wait((running,))


class PageSpan(NamedTuple):
    """Bytes `[start, end)` of a stream to look at. low: from where they are read, for the beginning of
    the first line."""

    stream: LogStreamRecord
    low: int
    start: int
    end: int


Page = list[PageSpan]


def plan_pages(chunks: Sequence[LogSpan], context: int) -> list[Page]:
    """Put chunks, in order, into pages. context: the lines that are wanted before a match."""
    pages: list[Page] = [[]]
    size = 0
    stream: LogStreamRecord | None = None
    end = 0
    for chunk in chunks:
        page, bytes_more = pages[-1], chunk.end - chunk.start
        follows = chunk.stream is stream and chunk.start <= end
        low = chunk.start
        if not follows and not (chunk.begins_line and not context):
            low = max(0, chunk.start - FIRST_BYTES)
        if page and (size + bytes_more > PAGE_BYTES or len(page) >= MAX_SPANS):
            page, size = [], 0
            pages.append(page)
        if follows and page:
            last = page[-1]
            page[-1] = PageSpan(last.stream, last.low, last.start, chunk.end)
        else:
            page.append(PageSpan(chunk.stream, low, chunk.start, chunk.end))
        size += chunk.end - low
        stream, end = chunk.stream, chunk.end
    return [page for page in pages if page]


class PageReader:
    """Reads pages and looks at them. limit: how many matches are told in all."""

    def __init__(self, store: PostgresLogSearch, find: Finder, context: int, limit: int) -> None:
        self._store, self._find, self._context = store, find, context
        self.left = limit
        self.read_bytes = self.read_chunks = 0
        self._scanners: dict[tuple[str, int, int, str], Scanner] = {}
        self._counted: set[tuple[LogStreamRecord, int]] = set()
        self._now: tuple[LogStreamRecord, Scanner] | None = None

    async def read(self, pages: Sequence[Page]) -> tuple[int, FoundLines]:
        """Return how many of the pages were looked at in `TURN_SECONDS`, and what stands in them. The
        next ones are read while one is looked at."""
        found: FoundLines = []
        clock, done = asyncio.get_running_loop().time, 0
        ends = clock() + TURN_SECONDS
        coming: deque[asyncio.Task[list[list[LogPiece]]]] = deque()
        try:
            for number, page in enumerate(pages):
                ahead = 1 + READ_AHEAD if clock() < ends else number == 0
                for later in pages[number + len(coming) : number + ahead]:
                    coming.append(asyncio.create_task(self._fetch(later)))
                if not coming:
                    break
                found += await self._look(page, await coming.popleft())
                done = number + 1
                if self.left <= 0:
                    break
        finally:
            for task in coming:
                task.cancel()
            await asyncio.gather(*coming, return_exceptions=True)
        return done, found

    async def finish(self) -> FoundLines:
        """Return what stands in lines that have not ended; begin with other streams afterwards."""
        found = await self._complete()
        self._scanners.clear()
        self._counted.clear()
        return found

    async def _fetch(self, page: Sequence[PageSpan]) -> list[list[LogPiece]]:
        pieces = await self._store.read_spans([LogSpan(s.stream, s.low, s.end) for s in page])
        for span, of_span in zip(page, pieces, strict=True):
            for piece in of_span:
                # A chunk that is read again, for the beginning or the end of a line, counts once.
                if (span.stream, piece.offset) not in self._counted:
                    self._counted.add((span.stream, piece.offset))
                    self.read_chunks += 1
                    self.read_bytes += len(piece.data)
        return pieces

    async def _look(self, page: Page, pieces: list[list[LogPiece]]) -> FoundLines:
        found: FoundLines = []
        at, tries = 0, 0
        while at < len(page) and self.left > 0:
            before = at
            at, wanted = await _in_thread(self._look_on, page, pieces, at, found)
            tries = 0 if at > before else tries
            if wanted == "end":
                found += await self._complete()
            elif wanted == "begin":
                tries += 1
                await self._read_back(page, pieces, at, min(FIRST_BYTES << 3 * tries, LINE_BYTES))
        return found

    async def _read_back(
        self, page: Page, pieces: list[list[LogPiece]], at: int, more: int
    ) -> None:
        """Read `more` bytes before a span of a page, for the beginning of its first line."""
        stream, _, start, end = page[at]
        low = max(0, start - more)
        (before,) = await self._fetch([PageSpan(stream, low, low, start)])
        known = {piece.offset for piece in before}
        page[at] = PageSpan(stream, low, start, end)
        pieces[at] = before + [piece for piece in pieces[at] if piece.offset not in known]

    def _look_on(
        self, page: Page, pieces: list[list[LogPiece]], at: int, found: FoundLines
    ) -> tuple[int, str]:
        """Look at the spans of a page in a thread, from the span of that number on. Return the
        number of the next span, and what must be read first: the "end" of the line before that
        span, or the "begin" of its first line."""
        for number in range(at, len(page)):
            span, given = page[number], pieces[number]
            scanner = self._find_scanner(span.stream)
            jumps = bool(given) and given[0].offset > scanner.end
            left = self._now is not None and (self._now[1] is not scanner or jumps)
            if left and self._now is not None and self._now[1].wants_more:
                return number, "end"
            self._now = span.stream, scanner
            if jumps:
                begun = find_line_start(given, span.low, span.start, self._context)
                if begun is None:
                    return number, "begin"
                given = begun
            self._feed(span.stream, scanner, given, found)
            if self.left <= 0:
                break
        return len(page), ""

    def _find_scanner(self, stream: LogStreamRecord) -> Scanner:
        key = (stream.job_id, stream.attempt, stream.rank, stream.stream)
        if key not in self._scanners:
            self._scanners[key] = Scanner(self._find, self._context)
        return self._scanners[key]

    def _feed(
        self,
        stream: LogStreamRecord,
        scanner: Scanner,
        pieces: Sequence[LogPiece],
        found: FoundLines,
    ) -> None:
        scanner.left = self.left
        found += [(stream, line) for line in scanner.feed(pieces)]
        self.left = scanner.left

    async def _complete(self) -> FoundLines:
        """Read on to the end of the line that has not ended, and look at it."""
        found: FoundLines = []
        if self._now is None:
            return found
        (stream, scanner), self._now = self._now, None
        begun, size = scanner.end, FIRST_BYTES
        while scanner.wants_more and self.left > 0 and scanner.end - begun < LONGEST_BYTES:
            end = scanner.end
            (pieces,) = await self._fetch([PageSpan(stream, end, end, end + size)])
            if not pieces or pieces[0].offset > end:
                break
            await _in_thread(self._feed, stream, scanner, pieces, found)
            size = min(8 * size, PAGE_BYTES)
        scanner.left = self.left
        found += [(stream, line) for line in scanner.finish()]
        self.left = scanner.left
        return found
