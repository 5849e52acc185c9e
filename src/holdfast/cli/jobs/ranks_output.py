"""The output of several ranks in one terminal: whole lines, each with the rank it is of."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_LINE_BYTES = 64 * 1024
"""A line without an end is written as it is after so many bytes."""

_END = re.compile(rb"\r\n|\n|\r")


class RankPrefixer:
    """Cuts each rank's bytes into lines and puts `[rank] ` before every one.

    Nothing of a line is written before it has ended, so that ranks never mix within one. A carriage
    return ends a line too: a progress bar moves on. Not byte for byte, then; `--rank` is.
    """

    def __init__(self, tasks: int) -> None:
        self._width = len(str(max(0, tasks - 1)))
        self._left: dict[tuple[int, int, str], bytes] = {}

    def feed(self, attempt: int, rank: int, stream: str, data: bytes) -> bytes:
        """What may be written now. Bytes of a later attempt end what an earlier one left without an
        end."""
        place = (attempt, rank, stream)
        older = [other for other in self._left if other[1:] == place[1:] and other[0] < attempt]
        out = [self._finish(other) for other in older]
        left = self._left.pop(place, b"") + data
        begin = 0
        for found in _END.finditer(left):
            # A return at the very end may be half of a line's end.
            if found[0] == b"\r" and found.end() == len(left):
                break
            out += (self._mark(rank), left[begin : found.end()])
            begin = found.end()
        left = left[begin:]
        if len(left) > MAX_LINE_BYTES:
            out += (self._mark(rank), left, b"\n")
            left = b""
        if left:
            self._left[place] = left
        return b"".join(out)

    def close(self) -> Iterator[tuple[str, bytes]]:
        """What is left without an end, by stream, when there is no more to come."""
        for place in sorted(self._left):
            yield place[2], self._finish(place)

    def _finish(self, place: tuple[int, int, str]) -> bytes:
        return self._mark(place[1]) + self._left.pop(place).rstrip(b"\r") + b"\n"

    def _mark(self, rank: int) -> bytes:
        return b"[%*d] " % (self._width, rank)
