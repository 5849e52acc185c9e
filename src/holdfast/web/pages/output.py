"""The output of a job as lines of markup, while it comes: all ranks interleaved."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
from markupsafe import Markup

from holdfast.client.methods.jobs import JobMethods
from holdfast.core.records import JobRecord
from holdfast.errors import HoldfastError, ValidationError
from holdfast.web.ansi import MarkupLines
from holdfast.web.page import PageRequest
from holdfast.wire.api import LogLine

TAIL_BYTES = 64 * 1024
"""The last bytes of each stream that a page shows at first; the rest is a download away."""
MARGINS = 8
KEEP_ALIVE_SECONDS = 1.0
_LINE = Markup(
    '<div class="r{margin}{err}"><b title="attempt {attempt}, rank {rank}, {stream}">{rank}</b>'
    "{text}</div>"
)
_NOTE = Markup('<div class="note">{text}</div>')


async def follow_output(ask: PageRequest) -> AsyncIterator[bytes]:
    """Yield server-sent events: `lines` with markup, `state` and `end`."""
    options = {name: _whole(ask, name) for name in ("attempt", "rank")}
    source = JobMethods.follow(
        ask.reader,
        ask.params["job"],
        stream=ask.query.get("stream", "both"),
        tail=TAIL_BYTES,
        **options,
    )
    streams: dict[tuple[int, int, str], MarkupLines] = {}
    queue: asyncio.Queue[bytes | None] = asyncio.Queue(8)

    async def read() -> None:
        try:
            async for item in ask.reader.each(source):
                if isinstance(item, LogLine):
                    lines = draw_lines(item, streams)
                    if lines:
                        await queue.put(_event("lines", {"html": lines}))
                elif isinstance(item, JobRecord):
                    await queue.put(_event("state", {"state": item.state.value}))
            await queue.put(_event("end", {}))
        except HoldfastError as error:
            await queue.put(_event("problem", {"code": error.code, "detail": error.message}))
        await queue.put(None)

    reading = asyncio.create_task(read())
    try:
        while True:
            piece: bytes | None = b": here\n\n"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    piece = await queue.get()
            if piece is None:
                return
            yield piece
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def draw_lines(item: LogLine, streams: dict[tuple[int, int, str], MarkupLines]) -> str:
    """Return the markup of a piece of output. streams: where each stream's last line stands."""
    key = (item.attempt, item.rank, item.stream)
    fresh = key not in streams
    stream = streams.setdefault(key, MarkupLines())
    out = []
    if item.gap and not fresh:
        out.append(_NOTE.format(text=f"{item.gap} bytes are not kept here"))
    for line in stream.cut(item.data):
        out.append(
            _LINE.format(
                margin=item.rank % MARGINS,
                err=" err" if item.stream == "stderr" else "",
                attempt=item.attempt,
                rank=item.rank,
                stream=item.stream,
                text=line,
            )
        )
    return "".join(out)


def _whole(ask: PageRequest, name: str) -> int | None:
    text = ask.query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValidationError(f"{name} is a whole number, not {text[:32]!r}", field=name)
    return int(text)


def _event(kind: str, value: object) -> bytes:
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(value) + b"\n\n"
