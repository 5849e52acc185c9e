"""The error lines of all ranks of an attempt, grouped by their likeness."""

import asyncio
import bisect
from collections.abc import Sequence

from starlette.responses import Response

from holdfast.controller.api.jobs import find_job
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.core.logs.likeness import (
    MAX_KINDS,
    ErrorLine,
    find_error_lines,
    find_likeness,
    group_errors,
)
from holdfast.core.logs.scan import LogPiece
from holdfast.store.postgres.logs.search import LogSpan
from holdfast.wire.operations.queries import AttemptQuery

TAIL_BYTES = 32 * 1024
"""As many bytes of each stream are looked at, its last ones."""
SPANS_AT_ONCE = 50


async def list_errors(call: ApiCall) -> Response:
    """List the error lines at the ends of an attempt's streams, as groups."""
    query = call.query(AttemptQuery)
    job = await find_job(call)
    streams = await call.store.log_search.list_searched_streams(
        [job.id], query.attempt or max(1, job.attempts)
    )
    found: list[ErrorLine] = []
    for at in range(0, len(streams), SPANS_AT_ONCE):
        spans = [
            LogSpan(stream, max(0, stream.size - TAIL_BYTES), stream.size)
            for stream in streams[at : at + SPANS_AT_ONCE]
        ]
        async with call.controller.searches.wait_turn(call.user):
            pieces = await call.store.log_search.read_spans(spans)
            found += await asyncio.to_thread(_find_all, spans, pieces)
    return answer_page(await asyncio.to_thread(group_errors, found))


def _find_all(spans: Sequence[LogSpan], pieces: Sequence[list[LogPiece]]) -> list[ErrorLine]:
    return [
        line
        for span, of_span in zip(spans, pieces, strict=True)
        for line in _find_errors(span, of_span)
    ]


def _find_errors(span: LogSpan, pieces: Sequence[LogPiece]) -> list[ErrorLine]:
    """Return the last error lines of a stream; of lines that are alike, the first."""
    data = b"".join(piece.data for piece in pieces)
    if pieces and pieces[0].offset > 0:
        data = data[data.find(b"\n") + 1 :]  # it begins within a line
    text = data.decode(errors="surrogateescape")
    kinds: dict[str, tuple[int, str]] = {}
    for begin, line in find_error_lines(text):
        kinds.setdefault(find_likeness(line), (begin, line))
    ends = [piece.offset + len(piece.data) for piece in pieces]
    first = (ends[-1] if ends else 0) - len(data)
    lines = []
    for begin, line in list(kinds.values())[-MAX_KINDS:]:
        offset = first + len(text[:begin].encode(errors="surrogateescape"))
        at = pieces[min(bisect.bisect_right(ends, offset), len(pieces) - 1)].at
        shown = line.encode(errors="surrogateescape").decode(errors="replace")
        lines.append(ErrorLine(span.stream.rank, shown, at))
    return lines
