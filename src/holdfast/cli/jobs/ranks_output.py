"""The output of several ranks in one terminal: whole lines, each after its rank's number."""

import re
from collections.abc import Iterator

MAX_LINE_BYTES = 64 * 1024
"""A longer line is written in pieces."""

_END = re.compile(rb"\r\n|\n|\r")


class RankPrefixer:
    """Cuts each rank's bytes into lines and puts `[rank] ` before every line.

    A line is held back until it has ended, so that ranks never mix within one. A carriage return
    ends a line too, so that progress bars move on. `--rank` gives one rank's bytes unchanged.
    """

    def __init__(self, tasks: int) -> None:
        self._width = len(str(max(0, tasks - 1)))
        self._left: dict[tuple[int, int, str], bytes] = {}

    def feed(self, attempt: int, rank: int, stream: str, data: bytes) -> bytes:
        """Return the bytes to write now. A later attempt ends the open line of an earlier one."""
        place = (attempt, rank, stream)
        older = [other for other in self._left if other[1:] == place[1:] and other[0] < attempt]
        out = [self._finish(other) for other in older]
        left = self._left.pop(place, b"") + data
        begin = 0
        for found in _END.finditer(left):
            # A carriage return at the end of the data may be half of "\r\n".
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
        """Yield the open lines, each with its stream, after the last bytes."""
        for place in sorted(self._left):
            yield place[2], self._finish(place)

    def _finish(self, place: tuple[int, int, str]) -> bytes:
        return self._mark(place[1]) + self._left.pop(place).rstrip(b"\r") + b"\n"

    def _mark(self, rank: int) -> bytes:
        return b"[%*d] " % (self._width, rank)
