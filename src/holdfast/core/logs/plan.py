"""Decide which bytes of a log stream are kept: its head and its tail. Pure.

- The first eighth of the limit is kept for ever; of the rest, the newest bytes.
LOG-2  Appending is idempotent by offset: bytes that are there are never written again, a late chunk
       fills its gap.
LOG-3  The log of a replacement goes on where its predecessor's ended; bytes that the predecessor
       sends afterwards are dropped.
"""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.ids import TaskKey
from holdfast.errors import Stale

PIECE_BYTES = 64 * 1024
HEAD_SHARE = 8


class Range(NamedTuple):
    """Bytes `[offset, offset + length)` that are kept."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """Return the offset after the last byte."""
        return self.offset + self.length


class AppendPlan(NamedTuple):
    """The change of a stream for one append. pieces: (offset, bytes) to write. size: the stream's
    size afterwards. Bytes within `[head, tail_start)` are dropped."""

    pieces: list[tuple[int, bytes]]
    size: int
    head: int
    tail_start: int


def plan_append(
    size: int, ranges: Sequence[Range], offset: int, data: bytes, keep_bytes: int
) -> AppendPlan:
    """Return the change of a stream of `size` bytes for `data` at `offset`.

    ranges: the kept ranges near `data`, sorted. keep_bytes: most bytes that the stream keeps.
    """
    after = max(size, offset + len(data))
    head = max(1, keep_bytes // HEAD_SHARE)
    tail_start = max(head, after - max(1, keep_bytes - head))
    pieces: list[tuple[int, bytes]] = []
    for start, end in _find_missing(ranges, offset, offset + len(data)):
        for low, high in ((start, min(end, head)), (max(start, tail_start), end)):
            for at in range(low, high, PIECE_BYTES):
                stop = min(at + PIECE_BYTES, high)
                pieces.append((at, data[at - offset : stop - offset]))
    return AppendPlan(pieces, after, head, tail_start)


def _find_missing(ranges: Sequence[Range], start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of `[start, end)` that no range covers."""
    missing = []
    at = start
    for r in ranges:
        if r.end <= at:
            continue
        if r.offset >= end:
            break
        if r.offset > at:
            missing.append((at, r.offset))
        at = max(at, r.end)
    if at < end:
        missing.append((at, end))
    return missing


def window(
    chunks: Sequence[tuple[int, bytes]], offset: int, limit_bytes: int
) -> list[tuple[int, bytes]]:
    """Return `chunks` (sorted) from `offset` on, at most `limit_bytes`, the first one trimmed."""
    found = []
    left = limit_bytes
    for at, data in chunks:
        if at < offset:
            at, data = offset, data[offset - at :]
        if not data:
            continue
        if left <= 0:
            break
        found.append((at, data[:left]))
        left -= len(data)
    return found


class LogBase(NamedTuple):
    """The offset `base` in a stream at which the bytes of one replacement of a rank begin, None
    until it has sent some. number: which replacement of the rank it is; epoch: its epoch."""

    epoch: int
    number: int
    base: int | None


class LogPlace(NamedTuple):
    """The place in a stream for bytes sent under an epoch: from `base` on, not beyond `limit`.

    new: the base is not on record yet. later: a successor has sent bytes, so the end of this
    sender's output is not the end of the stream.
    """

    base: int
    limit: int | None
    new: bool
    later: bool

    def cut(self, offset: int, data: bytes) -> tuple[int, bytes]:
        """Return the bytes at their place in the stream, without those whose place is taken."""
        at = self.base + offset
        return (at, data) if self.limit is None else (at, data[: max(0, self.limit - at)])


def find_place(bases: Sequence[LogBase], epoch: int, size: int) -> LogPlace:
    """Return the place of a sender's bytes in a stream of `size` bytes (LOG-3). epoch: the
    sender's. bases: one for each replacement of the rank."""
    mine = next((b for b in bases if b.epoch == epoch), None)
    number = 0 if mine is None else mine.number
    after = [b.base for b in bases if b.number > number and b.base is not None]
    limit = min(after, default=None)
    if mine is None:
        return LogPlace(0, limit, False, limit is not None)
    if mine.base is not None:
        return LogPlace(mine.base, limit, False, limit is not None)
    # The sender's first bytes: they go to the end, or nowhere if a successor has begun already.
    return LogPlace(size if limit is None else limit, limit, True, limit is not None)


class LogLife(NamedTuple):
    """One process of a rank: the attempt's first, or a replacement. base: the offset in the stream
    at which its bytes begin, None until it has sent some."""

    key: TaskKey
    host_id: str
    base: int | None


class LifeRange(NamedTuple):
    """The part `[start, end)` of a stream that one process of a rank wrote."""

    life: LogLife
    start: int
    end: int


def split_by_life(lives: Sequence[LogLife], start: int, end: int) -> list[LifeRange]:
    """Split `[start, end)` of a stream by the process that wrote each part (LOG-3). lives: the
    rank's processes, the oldest first."""
    wrote = [life for life in lives if life.base is not None]
    ends = [life.base or 0 for life in wrote[1:]] + [end]
    parts = [
        LifeRange(life, max(start, life.base or 0), min(end, after))
        for life, after in zip(wrote, ends, strict=True)
    ]
    return [part for part in parts if part.start < part.end]


def no_attempt(host_id: str, key: TaskKey) -> Stale:
    """Return the error for bytes from a host that did not run the task."""
    attempt = f"no attempt of job {key.job_id} under epoch {key.epoch}"
    return Stale(f"{attempt} ran rank {key.rank} on host {host_id}")
