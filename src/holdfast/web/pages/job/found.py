"""The search of a job's output, answered by the server: lines that match, as they are found."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import msgspec
from markupsafe import Markup

from holdfast.client.methods.jobs import JobMethods
from holdfast.core.words import say_bytes
from holdfast.errors import HoldfastError
from holdfast.web.ansi import write_plain
from holdfast.web.page import PageRequest
from holdfast.web.pages.job.output import MARGINS, LineId, read_place
from holdfast.web.words import write_number
from holdfast.wire.logs.search import LogFound, LogSearchEnd

MAX_FOUND = 500
BEFORE_CHARS, AFTER_CHARS = 120, 400
"""The part of a long line that is shown around a match."""
FRAME_SECONDS = 0.1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FOUND = Markup(
    '<a class="found r{margin}" href="{href}" data-line="{line}" data-at="{at}"><time></time>'
    '<b title="attempt {attempt}, rank {rank}, {stream}">{rank}</b>{before}<mark>{match}</mark>'
    "{after}</a>"
)


async def search_output(ask: PageRequest) -> AsyncIterator[bytes]:
    """Yield server-sent events: `found` with markup, and `end` with the sentence of what was
    searched. The search ends with its reader."""
    source = JobMethods.search_logs(
        ask.reader,
        ask.query.get("find", ""),
        [ask.params["job"]],
        ignore_case=ask.query.get("case") != "1",
        fixed=ask.query.get("words") == "1",
        max_matches=MAX_FOUND,
        **read_place(ask),
    )
    queue: asyncio.Queue[LogFound | LogSearchEnd | HoldfastError] = asyncio.Queue(MAX_FOUND)

    async def read() -> None:
        try:
            async for item in ask.reader.each(source):
                await queue.put(item)
        except HoldfastError as error:
            await queue.put(error)

    reading = asyncio.create_task(read(), name="a search for a browser")
    try:
        while True:
            items: list[LogFound | LogSearchEnd | HoldfastError] = []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    items = [await queue.get()]
            while not queue.empty():
                items.append(queue.get_nowait())
            lines = [draw_found(item, ask) for item in items if isinstance(item, LogFound)]
            yield _event("found", {"html": "".join(lines)}) if lines else b": here\n\n"
            for item in items:
                if isinstance(item, LogSearchEnd):
                    yield _event("end", {"said": say_end(item)})
                    return
                if isinstance(item, HoldfastError):
                    yield _event("problem", {"code": item.code, "detail": item.message})
                    return
            await asyncio.sleep(FRAME_SECONDS)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def draw_found(found: LogFound, ask: PageRequest) -> str:
    """Return a match as a link to its place in the output."""
    line = LineId(found.attempt, found.rank, found.stream, found.offset).words
    at = 0 if found.at is None else (found.at - _EPOCH) // timedelta(microseconds=1)
    begin, end = found.start, found.end
    text = found.text
    left = "…" if begin > BEFORE_CHARS else ""
    right = "…" if found.cut or len(text) > end + AFTER_CHARS else ""
    page = msgspec.structs.replace(ask, path=f"/jobs/{ask.params['job']}")
    return _FOUND.format(
        margin=found.rank % MARGINS,
        href=page.at(line=line, at=str(at), attempt=str(found.attempt)),
        line=line,
        at=at,
        attempt=found.attempt,
        rank=found.rank,
        stream=found.stream,
        before=left + write_plain(text[max(0, begin - BEFORE_CHARS) : begin]),
        match=write_plain(text[begin:end][:AFTER_CHARS]),
        after=write_plain(text[end : end + AFTER_CHARS]) + right,
    )


def say_end(end: LogSearchEnd) -> str:
    """Return the sentence of what a search looked at."""
    lines = "line matches" if end.matches == 1 else "lines match"
    said = f"{write_number(end.matches)} {lines}; {say_bytes(end.kept_bytes)} were searched"
    if end.stopped == "max":
        said = f"the first {write_number(end.matches)} lines that match; there may be more"
    elif end.stopped == "time":
        said += " until the time for a search was over; there may be more"
    if end.missing_bytes:
        said += f"; {say_bytes(end.missing_bytes)} are no longer kept"
    return said + "."


def _event(kind: str, value: object) -> bytes:
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(value) + b"\n\n"
