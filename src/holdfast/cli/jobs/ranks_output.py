"""The output of several ranks in one terminal: whole lines, each after its rank's number; and the
part of an output that was asked for, with its times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.wire.logs.lines import LogLine

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


class Excerpt:
    """The part of an output that was asked for. starts: where it begins, by attempt, rank and stream;
    since: nothing that the controller was given before; stamps: put that time before each line."""

    def __init__(
        self,
        starts: Mapping[tuple[int, int, str], int],
        since: datetime | None = None,
        *,
        stamps: bool = False,
    ) -> None:
        self._starts, self._since, self._stamps = starts, since, stamps
        self._open: set[tuple[int, int, str]] = set()  # places within a line

    def choose_bytes(self, line: LogLine) -> bytes:
        """Return the part of these bytes that is to be shown."""
        place = (line.attempt, line.rank, line.stream)
        data = line.data[max(0, self._starts.get(place, 0) - line.offset) :]
        if self._since is not None and line.at is not None and line.at < self._since:
            return b""
        if not (self._stamps and data):
            return data
        stamp = _stamp(line.at)
        lines = data.splitlines(keepends=True) if b"\r" not in data else data.split(b"\n")
        if b"\r" in data:  # a progress bar is one line
            lines = [part + b"\n" for part in lines[:-1]] + lines[-1:]
        begun = place in self._open
        (self._open.discard if data.endswith(b"\n") else self._open.add)(place)
        first = b"" if begun else stamp
        return first + stamp.join(part for part in lines if part)


def _stamp(at: datetime | None) -> bytes:
    if at is None:
        return b"-" * 24 + b" "
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z ".encode()


def find_last_lines(data: bytes, count: int) -> int:
    """Return how many of the last bytes are the last `count` lines."""
    at = len(data)
    end = len(data) - data.endswith(b"\n")
    for _ in range(count):
        at = data.rfind(b"\n", 0, end) + 1
        if at == 0:
            break
        end = at - 1
    return len(data) - at if count else 0
