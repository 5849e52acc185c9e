"""Find the lines of a stream that match, piece by piece. Pure.

GREP-2  However a stream is cut into pieces, each of its lines is looked at once, whole, and alone.
        A line of more than `LINE_BYTES` is looked at in parts that overlap, and told once.
GREP-3  Memory does not grow with a line: a line is told by `SHOWN_BYTES` of it around its match.
"""

import bisect
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

LINE_BYTES = 1 << 20
OVERLAP_BYTES = 64 * 1024
SHOWN_BYTES = 2000
AHEAD_BYTES = 200
"""The bytes before a match that are told of a line that is cut."""
Finder = Callable[[bytes, int], tuple[int, int] | None]
"""Returns where the first match in a text begins and ends, from a place on; None where none does.
The text is UTF-8."""


class FoundLine(NamedTuple):
    """A line that matches, or that stands beside a line that matches. offset: where the line begins
    in the stream. data: the line without its end, or the part of it that is told. cut: bytes that
    are not told, at the least where the line has not ended. start, end: the match within `data`."""

    offset: int
    data: bytes
    cut: int
    at: datetime | None
    match: bool
    start: int = 0
    end: int = 0


class LogPiece(NamedTuple):
    """Bytes of a stream, and when the controller was given them."""

    offset: int
    data: bytes
    at: datetime | None


class Scanner:
    """One reader's place in one stream. context: how many lines before and after a match are told.
    limit: how many matches are told."""

    def __init__(self, find: Finder, context: int = 0, limit: int = 1 << 62) -> None:
        self._find, self._context, self.left = find, context, limit
        self.end = 0
        """The offset after the last byte that was given."""
        self._open = b""
        self._times: list[tuple[int, datetime | None]] = []
        self._prior: deque[FoundLine] = deque(maxlen=context)
        self._owed = 0
        self._long: int | None = None  # where a line began of which parts were looked at
        self._long_told = False

    @property
    def wants_more(self) -> bool:
        """Return whether the next bytes of the stream belong to what was given: to a line that has
        not ended, or to lines that stand after a match."""
        return self.left > 0 and bool(self._open or self._owed or self._long is not None)

    def feed(self, pieces: Sequence[LogPiece]) -> list[FoundLine]:
        """Look at pieces, in order, and return the lines that are to be told."""
        found: list[FoundLine] = []
        whole: list[bytes] = []
        for offset, data, at in pieces:
            if offset < self.end:
                data, offset = data[self.end - offset :], self.end
                if not data:
                    continue
            if offset > self.end:
                found += self._look(whole)
                whole = []
                found += self.finish()
                self._prior.clear()
            self._times.append((offset, at))
            whole.append(data)
            self.end = offset + len(data)
        return found + self._look(whole)

    def finish(self) -> list[FoundLine]:
        """Look at the line that has not ended, because no byte follows it."""
        data, self._open = self._open, b""
        begin = self.end - len(data)
        if self._long is not None:
            found = self._look_at_part(data, begin)
        else:
            found = self._look_at_lines(data, begin) if data else []
        self._long, self._owed = None, 0
        return found

    def _look(self, whole: Sequence[bytes]) -> list[FoundLine]:
        if not whole:
            return []
        data = b"".join((self._open, *whole))
        found: list[FoundLine] = []
        while True:
            begin = self.end - len(data)
            if self._long is None:
                cut = data.rfind(b"\n") + 1
                found += self._look_at_lines(data[:cut], begin) if cut else []
                data = data[cut:]
                if len(data) <= LINE_BYTES:
                    break
                self._long, self._long_told = begin + cut, False
                continue
            cut = data.find(b"\n")
            if cut < 0 and len(data) <= LINE_BYTES:
                break
            if cut < 0:
                found += self._look_at_part(data[:LINE_BYTES], begin)
                data = data[LINE_BYTES - OVERLAP_BYTES :]
            else:
                found += self._look_at_part(data[:cut], begin)
                data, self._long = data[cut + 1 :], None
        self._open = data
        keep = bisect.bisect_right(self._times, self.end - len(data), key=lambda t: t[0]) - 1
        del self._times[: max(0, keep)]
        return found

    def _look_at_part(self, part: bytes, begin: int) -> list[FoundLine]:
        """Look at a part of a line that is too long."""
        match = None if self._long_told or self.left <= 0 else self._find(_clean(part), 0)
        if match is None or self._long is None:
            return []
        self._long_told = True
        line = self._tell(part, begin, (0, len(part)), match, begin - self._long)
        return [*self._take_prior(), line]

    def _look_at_lines(self, raw: bytes, begin: int) -> list[FoundLine]:
        """Look at whole lines."""
        found: list[FoundLine] = []
        text, seen = _clean(raw), 0
        while self.left > 0 and seen < len(text):
            match = self._find(text, seen)
            if match is None:
                break
            start = max(seen, text.rfind(b"\n", 0, match[0]) + 1)
            if start >= len(text):
                break  # behind the last line's end
            end = text.find(b"\n", max(match))
            end = len(text) if end < 0 else end
            found += self._pass_by(raw, begin, seen, start)
            found += self._take_prior()
            found.append(self._tell(raw, begin, (start, end), match))
            seen = end + 1
        if self._context and self.left >= 0:
            found += self._pass_by(raw, begin, seen, len(raw))
        return found

    def _take_prior(self) -> list[FoundLine]:
        """Return the lines that stand before a match, each once; those after it are owed."""
        prior = list(self._prior)
        self._prior.clear()
        self._owed = self._context
        self.left -= 1
        return prior

    def _pass_by(self, raw: bytes, begin: int, low: int, high: int) -> list[FoundLine]:
        """Return the lines in `raw[low:high]` that stand after a match; keep the last lines, which
        may stand before the next match."""
        if not self._context:
            return []
        told = []
        while self._owed and low < high:
            end = raw.find(b"\n", low, high)
            end = high if end < 0 else end
            told.append(self._tell(raw, begin, (low, end)))
            self._owed, low = self._owed - 1, end + 1
        kept: list[FoundLine] = []
        while low < high and len(kept) < self._context:
            end = high - raw.endswith(b"\n", low, high)
            start = max(low, raw.rfind(b"\n", low, end) + 1)
            kept.append(self._tell(raw, begin, (start, end)))
            high = start
        self._prior.extend(reversed(kept))
        return told

    def _tell(
        self,
        raw: bytes,
        begin: int,
        line: tuple[int, int],
        match: tuple[int, int] | None = None,
        before: int = 0,
    ) -> FoundLine:
        """Return a line of `raw`, which begins at the offset `begin`. before: bytes of the line in
        front of `raw`."""
        start, end = line
        offset = begin + start
        end -= raw.endswith(b"\r", start, end)
        size = end - start
        first, last = match or (start, start)
        if size > SHOWN_BYTES:  # keep what matched in sight
            start = max(start, min(first - AHEAD_BYTES, end - SHOWN_BYTES))
            end = min(end, start + SHOWN_BYTES)
        first, last = (min(max(start, at), end) - start for at in (first, last))
        at = max(0, bisect.bisect_right(self._times, offset, key=lambda t: t[0]) - 1)
        when = self._times[at][1] if self._times else None
        data = raw[start:end]
        cut = before + size - len(data)
        return FoundLine(offset - before, data, cut, when, match is not None, first, last)


def find_line_start(
    pieces: Sequence[LogPiece], low: int, start: int, context: int
) -> list[LogPiece] | None:
    """Return pieces from the beginning of a line on: of the line that holds the byte at `start`, or,
    with `context`, of a line so many before it; None where more must be read for it.

    pieces: what is kept from `low` on, whole pieces, in order.
    """
    before, begin, hole = b"", start, True
    for offset, data, _ in pieces:
        if offset >= start:
            break
        if offset != begin + len(before):
            before, begin, hole = b"", offset, offset > low
        before += data[: start - offset]
    if begin + len(before) != start:
        before, begin, hole = b"", start, True  # a hole is just before
    at = len(before)
    for _ in range(context + 1):
        at = before.rfind(b"\n", 0, max(0, at))
        if at < 0:
            break
    if at < 0 and begin > 0 and not hole and len(before) < LINE_BYTES:
        return None
    line = begin + at + 1
    return [
        LogPiece(max(offset, line), data[max(0, line - offset) :], when)
        for offset, data, when in pieces
        if offset + len(data) > line
    ]


_NO_UTF8 = dict.fromkeys(range(0xDC80, 0xDD00), 0x1A)


def _clean(raw: bytes) -> bytes:
    """Return bytes as UTF-8 of the same length: each byte that is none becomes a control character,
    which `.` matches."""
    if raw.isascii():
        return raw
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode(errors="surrogateescape").translate(_NO_UTF8).encode()
    return raw
