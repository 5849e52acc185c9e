"""The lines that name calls in an executor's output, and which output is of which call. Pure.

An executor writes a line that names the call (a *mark*) before the first output of each call. The
call's output is the text between its mark and the next one. The positions of marks are kept as
ranges (`CallSpan`), so the rows grow with appends to the log, not with calls, and a call that
prints nothing costs nothing.

MARK-1  However a stream is cut into pieces, a reader gets the output between two marks whole and
        alone.
"""

import re

import msgspec

MARK = b"[holdfast] call "
MAX_GAP = 1000
"""Most indices between two neighbours of a span, because readers of a wider span would read much
output of other calls."""
_LONGEST = 64
_LINE = re.compile(
    rb"^\[holdfast\] call ([0-9a-hjkmnp-tv-z]{20})\.([0-9]{1,8}) attempt ([0-9]{1,6})\n", re.M
)


class CallMark(msgspec.Struct, frozen=True):
    """A line that names a call. start, end: byte offsets of the line; the output begins at
    `end`."""

    set_id: str
    index: int
    attempt: int
    start: int
    end: int


class CallSpan(msgspec.Struct, frozen=True):
    """Bytes `[start, end)` of a stream that hold the marks of some of the calls `[first, last)` of
    a set, all of the same attempt number."""

    set_id: str
    attempt: int
    first: int
    last: int
    start: int
    end: int


def make_mark(set_id: str, index: int, attempt: int) -> str:
    """Return the line before the output of a call."""
    return f"{MARK.decode()}{set_id}.{index} attempt {attempt}\n"


def find_marks(data: bytes, *, fresh: bool = True) -> list[CallMark]:
    """Return the marks in `data`, each with its offset in `data`. fresh: `data` begins at the start
    of a line."""
    if MARK not in data:
        return []
    return [
        CallMark(m[1].decode(), int(m[2]), int(m[3]), m.start(), m.end())
        for m in _LINE.finditer(data)
        if fresh or m.start() > 0
    ]


def count_partial(data: bytes, *, fresh: bool = True) -> int:
    """Return how many of the last bytes may begin a mark whose rest is not there yet."""
    line = data[data.rfind(b"\n") + 1 :]
    if not line or len(line) > _LONGEST or (len(line) == len(data) and not fresh):
        return 0
    return len(line) if line.startswith(MARK) or MARK.startswith(line) else 0


def cut_output(data: bytes, *, fresh: bool, final: bool = False) -> tuple[bytes, bool]:
    """Return the part of `data` before the next mark, and whether that mark is complete. Bytes at
    the end that may begin a mark are left out, unless `final`: no more bytes follow."""
    marks = find_marks(data, fresh=fresh)
    if marks:
        return data[: marks[0].start], True
    rest = 0 if final else count_partial(data, fresh=fresh)
    return data[: len(data) - rest], False


def list_spans(offset: int, data: bytes) -> list[CallSpan]:
    """Return the spans of the marks in `data`, which stands at `offset` of its stream: one span for
    marks of one set and attempt whose indices are near each other."""
    runs: list[_Run] = []
    open_runs: dict[tuple[bytes, bytes], _Run] = {}
    for mark in _LINE.finditer(data):
        name = mark[1], mark[3]
        index = int(mark[2])
        run = open_runs.get(name)
        if run is None or abs(index - run.index) > MAX_GAP:
            run = open_runs[name] = _Run(name, index, mark.start())
            runs.append(run)
        run.index = index
        run.end = mark.end()
        if index < run.first:
            run.first = index
        elif index > run.last:
            run.last = index
    return [
        CallSpan(
            run.name[0].decode(),
            int(run.name[1]),
            run.first,
            run.last + 1,
            offset + run.start,
            offset + run.end,
        )
        for run in runs
    ]


class _Run:
    """A span that still grows, as `list_spans` reads marks. index: the call of its newest mark."""

    __slots__ = ("end", "first", "index", "last", "name", "start")

    def __init__(self, name: tuple[bytes, bytes], index: int, start: int) -> None:
        self.name, self.start = name, start
        self.first = self.last = self.index = index
        self.end = start
