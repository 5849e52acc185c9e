"""Reading logs for a search: which chunks may hold a text, and their bytes."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from holdfast.core.calls.marks import CallMark, find_marks
from holdfast.core.logs import plan as log_plan
from holdfast.core.logs.grams import hash_text
from holdfast.core.logs.scan import LogPiece
from holdfast.core.records import LogStreamRecord
from holdfast.store.postgres.connection.parts import OnSession

_LONGEST_MARK = 64
_MARKS_BYTES = 1 << 16
_SPANS_AT_ONCE = 32
CHUNKS_AT_ONCE = 4096
"""Most chunks of one stream that one statement looks at."""


class LogSpan(NamedTuple):
    """A span `[start, end)` of a stream. begins_line: known to begin at the start of a line."""

    stream: LogStreamRecord
    start: int
    end: int
    begins_line: bool = False


class ChunkKey(NamedTuple):
    """When the controller was given a chunk, and its bytes `[start, end)`."""

    at: datetime
    start: int
    end: int


class FoundChunks(NamedTuple):
    """The chunks that may hold a text. seen: for each stream, the offset up to which it was looked
    at, None where that is its end."""

    spans: list[LogSpan]
    seen: list[int | None]


class PostgresLogSearch(OnSession):
    """The kept bytes of many streams at once."""

    async def list_searched_jobs(
        self,
        project: str | None,
        since: datetime | None,
        before: str | None,
        *,
        array_id: str | None = None,
        limit: int,
    ) -> list[str]:
        """Return jobs that have written, the newest first, from the one before `before` on. since:
        leave out those that had ended by then."""
        which = {"project": project, "array_id": array_id, "since": since, "before": before}
        rows = await self.session.rows("list_searched_jobs", **which, limit=limit)
        return [row["id"] for row in rows]

    async def list_searched_streams(
        self,
        job_ids: Sequence[str],
        attempt: int | None = None,
        rank: int | None = None,
        stream: str | None = None,
    ) -> list[LogStreamRecord]:
        """Return the streams of jobs that have bytes, in the order of the jobs."""
        which = {"attempt": attempt, "rank": rank, "stream": stream}
        return await self.session.list_of(
            LogStreamRecord, "list_searched_streams", ids=list(job_ids), **which
        )

    async def find_chunks(
        self,
        streams: Sequence[LogStreamRecord],
        starts: Sequence[int],
        texts: Sequence[bytes],
        since: datetime | None = None,
    ) -> FoundChunks:
        """Return the chunks of streams, each from its start on, in which one of `texts` may end
        (GREP-1); without texts, all. since: only what the controller was given then or later."""
        hashes = [hash_text(text) for text in texts]
        highs = [sum(map(len, hashes[: n + 1])) for n in range(len(hashes))]
        rows = await self.session.rows(
            "find_chunks",
            **_split(streams),
            starts=list(starts),
            all=not texts,
            lows=[high - len(h) + 1 for high, h in zip(highs, hashes, strict=True)],
            highs=highs,
            hashes=[one for of_text in hashes for one in of_text],
            since=since,
            limit=CHUNKS_AT_ONCE,
        )
        spans, seen = [], list[int | None]([None] * len(streams))
        for row in rows:
            number, end = row["n"] - 1, row["offset"] + row["length"]
            if row["looked"] == CHUNKS_AT_ONCE:
                seen[number] = end
            if row["may_hold"]:
                spans.append(LogSpan(streams[number], row["offset"], end, row["begins_line"]))
        return FoundChunks(spans, seen)

    async def list_keys(
        self, streams: Sequence[LogStreamRecord], starts: Sequence[int], *, limit: int
    ) -> list[list[ChunkKey]]:
        """Return the first chunks of each stream that have bytes from its start on, at most `limit`
        of each."""
        given = {"starts": list(starts), "longest": log_plan.PIECE_BYTES, "limit": limit}
        keys: list[list[ChunkKey]] = [[] for _ in streams]
        for row in await self.session.rows("list_log_keys", **_split(streams), **given):
            found = keys[row["n"] - 1]
            # A clock that was set back does not turn a stream's order round.
            at = max(row["at"], found[-1].at) if found else row["at"]
            found.append(ChunkKey(at, row["offset"], row["offset"] + row["length"]))
        return keys

    async def find_ends(
        self, streams: Sequence[LogStreamRecord], at: datetime, *, included: bool
    ) -> list[int]:
        """Return the length that each stream had at a time. included: with the bytes that came at
        that very time."""
        given = {"at": at, "included": included}
        rows = await self.session.rows("find_log_ends", **_split(streams), **given)
        return [row["end"] or 0 for row in rows]

    async def find_calls(
        self, places: Sequence[tuple[LogStreamRecord, int]]
    ) -> dict[int, CallMark]:
        """Return the mark of the call that printed the line at each place (stream, offset), by the
        place's number; none for a line that no call printed, or whose call is not known."""
        given = {"starts": [at for _, at in places], "longest": _LONGEST_MARK, "most": _MARKS_BYTES}
        streams = [stream for stream, _ in places]
        rows = await self.session.rows("find_last_marks", **_split(streams), **given)
        spans = [LogSpan(streams[r["n"] - 1], max(0, r["start"]), r["end"]) for r in rows]
        found: dict[int, CallMark] = {}
        for at in range(0, len(spans), _SPANS_AT_ONCE):
            part = spans[at : at + _SPANS_AT_ONCE]
            for row, span, pieces in zip(
                rows[at:], part, await self.read_spans(part), strict=False
            ):
                first = pieces[0].offset if pieces else 0
                data = b"".join(piece.data for piece in pieces)[: span.end - first]
                marks = find_marks(data, fresh=first == 0)
                if marks:
                    found[row["n"] - 1] = marks[-1]
        return found

    async def read_spans(self, spans: Sequence[LogSpan]) -> list[list[LogPiece]]:
        """Return the chunks that reach into each span, whole and in order."""
        rows = await self.session.rows(
            "read_log_spans",
            **_split([span.stream for span in spans]),
            starts=[span.start for span in spans],
            ends=[span.end for span in spans],
            longest=log_plan.PIECE_BYTES,
        )
        pieces: list[list[LogPiece]] = [[] for _ in spans]
        for row in rows:
            pieces[row["n"] - 1].append(LogPiece(row["offset"], row["data"], row["at"]))
        return pieces


def _split(streams: Sequence[LogStreamRecord]) -> dict[str, list[object]]:
    """Return streams as columns."""
    return {
        "jobs": [s.job_id for s in streams],
        "attempts": [s.attempt for s in streams],
        "ranks": [s.rank for s in streams],
        "streams": [s.stream for s in streams],
    }
