"""The output of a job as lines of markup, while it comes: all ranks interleaved.

OUTPUT-1  What a browser is sent is bounded, however fast a job writes and however slowly a browser
          reads: a frame of `FRAME_BYTES` each `FRAME_SECONDS`. What does not fit is dropped, not
          queued; the next frame replaces what the page shows, and the page reads back from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
from markupsafe import Markup
from starlette.responses import Response

from holdfast.client.methods.jobs import JobMethods
from holdfast.errors import HoldfastError, ValidationError
from holdfast.web.ansi import MarkupLines
from holdfast.web.page import PageRequest
from holdfast.wire.logs.lines import LogLine

MARGINS = 8
KEEP_ALIVE_SECONDS = 1.0
FRAME_SECONDS = 0.1
FRAME_BYTES = 64 * 1024
FRAME_LINES = 1000
FIRST_BYTES = 256 * 1024
SETTLE_SECONDS = 0.03
BEHIND_BYTES = 4 << 20
"""A reader that dropped so much in one frame reads the ends of the streams anew instead."""
TAILS_BYTES = 1 << 20
MIN_TAIL_BYTES, MAX_TAIL_BYTES = 256, 64 * 1024
"""The last bytes of each stream that a page shows at first: its share of `TAILS_BYTES`."""
PART_LINES = 500
PART_TAIL_BYTES = 8 << 20
EARLIER_SECONDS = (0.0, 2.0, 30.0)
_LINE = Markup(
    '<div id="{id}" class="r{margin}{more}" data-at="{at}"><time></time><b>{rank}</b>{text}</div>'
)
_NOTE = Markup('<div class="note">{text}</div>')
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LineId(NamedTuple):
    """The id of a line: its stream, and the place at which the line begins there."""

    attempt: int
    rank: int
    stream: str
    offset: int

    @property
    def words(self) -> str:
        """Return the id as a page has it."""
        return f"l{self.attempt}.{self.rank}.{self.stream[3]}.{self.offset}"

    def is_passed_by(self, other: LineId) -> bool:
        """Return whether another line stands in the same stream, and not before this one."""
        return self[:3] == other[:3] and other.offset >= self.offset


class DrawnLine(NamedTuple):
    """A line as markup; a note has no id. again: it was drawn before, and has another text now."""

    id: LineId | None
    html: str
    again: bool = False


class LastLines(dict[object, DrawnLine]):
    """Lines in their order, at most `most`, the oldest left out; one that is drawn again keeps its place."""

    def __init__(self, most: int) -> None:
        self._most = most

    def add(self, line: DrawnLine) -> None:
        """Add a line at the end, or in the place of what it was."""
        self[line.id or object()] = line
        if len(self) > self._most:
            del self[next(iter(self))]


class LineDrawer:
    """Draws pieces of many streams. cuts: the first line of a stream may have begun before."""

    def __init__(self, *, cuts: bool = True) -> None:
        self._cuts = cuts
        self._streams: dict[tuple[int, int, str], MarkupLines] = {}
        self._open: dict[tuple[int, int, str], int] = {}
        self._attempt: int | None = None

    def draw(self, item: LogLine) -> list[DrawnLine]:
        """Return the lines that a piece ends."""
        key = (item.attempt, item.rank, item.stream)
        known = self._streams.get(key)
        out = []
        if self._attempt is not None and item.attempt > self._attempt:
            out.append(_note(f"attempt {item.attempt} begins"))
        self._attempt = max(item.attempt, self._attempt or 0)
        if known is None or known.offset != item.offset:
            if known is not None and item.gap:
                out.append(_note(f"{item.gap:,} bytes are not kept here"))
            skips = item.offset > 0 and self._cuts
            known = self._streams[key] = MarkupLines(item.offset, skips=skips)
        at = _count_micros(item.at)
        out += [
            _draw(LineId(*key, line.offset), line.text, at, again=line.again)
            for line in known.cut(item.data)
        ]
        self._open[key] = at
        return out

    def draw_open(self) -> list[DrawnLine]:
        """Return the lines that have not ended, where more of them came."""
        out = []
        for key, at in self._open.items():
            line = self._streams[key].show_rest()
            if line is not None:
                out.append(_draw(LineId(*key, line.offset), line.text, at, " open"))
        self._open.clear()
        return out


def _draw(line: LineId, text: Markup, at: int, more: str = "", *, again: bool = False) -> DrawnLine:
    html = _LINE.format(
        id=line.words,
        rank=line.rank,
        margin=line.rank % MARGINS,
        more=more + (" err" if line.stream == "stderr" else ""),
        at=at,
        text=text,
    )
    return DrawnLine(line, html, again)


def _note(text: str) -> DrawnLine:
    return DrawnLine(None, _NOTE.format(text=text))


def _join(lines: Iterable[DrawnLine]) -> str:
    return "".join(line.html for line in lines)


class _Waiting:
    """Output that came and was not sent yet: at most `limit` bytes; the oldest is dropped (OUTPUT-1)."""

    def __init__(self) -> None:
        self.items: deque[LogLine] = deque()
        self.limit = FIRST_BYTES
        self.size = self.dropped = 0
        self.woken = asyncio.Event()
        self.over: bytes | None = None
        self.behind = self.begun = False

    def put(self, item: LogLine) -> None:
        self.items.append(item)
        self.size += len(item.data)
        while self.size > self.limit and len(self.items) > 1:
            size = len(self.items.popleft().data)
            self.size -= size
            self.dropped += size
        self.woken.set()

    def end(self, told: bytes | None) -> None:
        self.over, self.behind = told, told is None
        self.woken.set()

    def take(self) -> tuple[list[LogLine], int]:
        items, dropped = list(self.items), self.dropped
        self.items.clear()
        self.size = self.dropped = 0
        self.limit = FRAME_BYTES
        self.woken.clear()
        return items, dropped


async def follow_output(ask: PageRequest) -> AsyncIterator[bytes]:
    """Yield server-sent events: `lines` with markup, where `anew` says that they replace what the
    page shows; and `end`."""
    which = read_place(ask)
    job = await ask.reader.job(ask.params["job"])
    streams = 2 * (1 if which["rank"] is not None else job.tasks)
    tail = max(MIN_TAIL_BYTES, min(MAX_TAIL_BYTES, TAILS_BYTES // streams))
    most = BEHIND_BYTES + tail * streams

    async def read(waiting: _Waiting) -> None:
        source = JobMethods.follow(ask.reader, job.id, tail=tail, **which)
        try:
            async with contextlib.aclosing(_generator(ask.reader.each(source))) as items:
                async for item in items:
                    waiting.begun = True
                    if isinstance(item, LogLine):
                        waiting.put(item)
                        if waiting.dropped > most:
                            waiting.end(None)
                            return
            waiting.end(_event("end", {}))
        except HoldfastError as error:
            waiting.end(_event("problem", {"code": error.code, "detail": error.message}))

    while True:
        waiting = _Waiting()
        reading = asyncio.create_task(read(waiting), name="output for a browser")
        try:
            async for piece in _send_frames(waiting):
                yield piece
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if waiting.over is not None:
            yield waiting.over
            return


def _generator(items: AsyncIterator[LogLine | object]) -> AsyncGenerator[LogLine | object, None]:
    assert isinstance(items, AsyncGenerator)
    return items


async def _send_frames(waiting: _Waiting) -> AsyncIterator[bytes]:
    """Yield frames until the reader has ended, and what it left was sent. The first one may be empty, because
    the page says that nothing was printed once it has come, but not before the reader was answered."""
    drawer, first, size = LineDrawer(), True, -1
    while (
        waiting.size != size and waiting.size < waiting.limit
    ):  # the ends of all streams come at once
        size = waiting.size
        await asyncio.sleep(SETTLE_SECONDS)
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                await waiting.woken.wait()
        items, dropped = waiting.take()
        if items or (first and (waiting.begun or waiting.over is not None)):
            lines, count = LastLines(FRAME_LINES), 0
            for line in (line for item in items for line in drawer.draw(item)):
                lines.add(line)
                count += not line.again
            anew = first or dropped > 0 or count > FRAME_LINES
            for line in drawer.draw_open():
                lines.add(line)
            told = {"html": _join(lines.values()), "count": min(count, FRAME_LINES), "anew": anew}
            yield _event("lines", told)
            first = False
        else:
            yield b": here\n\n"
        if waiting.behind or (waiting.over is not None and not waiting.items):
            return
        await asyncio.sleep(FRAME_SECONDS)


async def send_part(ask: PageRequest) -> Response:
    """Send a part of the output as JSON: `html`, and as `line` the id of the line that was asked for.

    Parts are the last lines before the line `before`; the first ones from the line `after` on; and
    those of a span of time. Lines are named by their ids, and `at` is when that line came, in
    microseconds. A place within a line stands for that line.
    """
    begin, after = _read_micros(ask, "begin"), _read_line(ask, "after")
    until = _read_micros(ask, "until")
    if after is not None:
        at = _read_micros(ask, "at") or 0.0
        for earlier in EARLIER_SECONDS:  # a line may have begun in a chunk that came before
            lines, found = await _read_on(ask, max(0.0, at - earlier), until, after)
            if found:
                break
    elif begin is not None:
        lines, found = await _read_on(ask, begin, until, None)
    else:
        lines, found = await _read_back(ask), False
    line = lines[0].id if found and lines else None
    body = msgspec.json.encode({"html": _join(lines), "line": line.words if line else ""})
    return Response(body, 200, {"Cache-Control": "no-store"}, "application/json")


async def _read_back(ask: PageRequest) -> list[DrawnLine]:
    """Return the last lines before a line, or the last ones of all."""
    before, at = _read_line(ask, "before"), _read_micros(ask, "at")
    tail = min(PART_TAIL_BYTES, _whole(ask, "tail") or MAX_TAIL_BYTES)
    drawer, lines = LineDrawer(), LastLines(PART_LINES)
    async for item in _read_logs(ask, begin=None, until=at, tail=tail):
        for line in drawer.draw(item):
            if before and line.id and before.is_passed_by(line.id):
                return list(lines.values())
            lines.add(line)
    for line in drawer.draw_open():
        lines.add(line)
    return list(lines.values())


async def read_last_lines(ask: PageRequest, *, rank: int) -> list[Markup]:
    """Return the last lines of a rank as markup, those of the newest attempt at the end."""
    one = msgspec.structs.replace(ask, query={"rank": str(rank)})
    return [Markup(line.html) for line in await _read_back(one)]


async def _read_on(
    ask: PageRequest, begin: float, until: float | None, after: LineId | None
) -> tuple[list[DrawnLine], bool]:
    """Return the first lines from a time on, or those from a line on where it is found, and whether
    it was."""
    drawer, lines = LineDrawer(cuts=after is not None), LastLines(PART_LINES)
    begun = passed = after is None
    async for item in _read_logs(ask, begin=begin, until=until, tail=None):
        for line in drawer.draw(item):
            if after is not None and not passed and line.id and line.id[:3] == after[:3]:
                if line.id.offset <= after.offset:
                    begun = True
                    lines.clear()
                passed = line.id.offset >= after.offset
                if passed and not begun:
                    return list(lines.values()), False
            if len(lines) < PART_LINES or line.id in lines:
                lines.add(line)
        if passed and len(lines) >= PART_LINES:
            break
    for line in drawer.draw_open():
        if len(lines) < PART_LINES or line.id in lines:
            lines.add(line)
    return list(lines.values()), begun and after is not None


async def _read_logs(ask: PageRequest, **window: float | int | None) -> AsyncIterator[LogLine]:
    source = JobMethods.follow(
        ask.reader, ask.params["job"], wait=False, **read_place(ask), **window
    )
    async with contextlib.aclosing(_generator(ask.reader.each(source))) as items:
        async for item in items:
            if isinstance(item, LogLine):
                yield item


def _read_line(ask: PageRequest, name: str) -> LineId | None:
    """Return the id of a line that the query names."""
    text = ask.query.get(name, "")
    if not text:
        return None
    found = re.fullmatch(r"l(\d{1,9})\.(\d{1,9})\.([oe])\.(\d{1,18})", text, re.ASCII)
    if found is None:
        raise ValidationError(f"{name} is the id of a line, not {text[:32]!r}", field=name)
    attempt, rank, stream, offset = found.groups()
    name = "stdout" if stream == "o" else "stderr"
    return LineId(int(attempt), int(rank), name, int(offset))


def _count_micros(at: datetime | None) -> int:
    return 0 if at is None else (at - _EPOCH) // timedelta(microseconds=1)


def read_place(ask: PageRequest) -> dict[str, int | None]:
    """Return the attempt and the rank that a page is about, where it names them."""
    return {name: _whole(ask, name) for name in ("attempt", "rank")}


def _read_micros(ask: PageRequest, name: str) -> float | None:
    """Return a time of the query, given in microseconds, in seconds."""
    found = _whole(ask, name, digits=17)
    return None if found is None else found / 1e6


def _whole(ask: PageRequest, name: str, digits: int = 9) -> int | None:
    text = ask.query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= digits):
        raise ValidationError(f"{name} is a whole number, not {text[:32]!r}", field=name)
    return int(text)


def _event(kind: str, value: object) -> bytes:
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(value) + b"\n\n"
