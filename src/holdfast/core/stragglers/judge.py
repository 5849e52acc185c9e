"""Chunks of a gang → which rank is slow by itself, whether it keeps up again, or that all are slower.

SLOW-1  A rank is named where, for `LEAST_STEPS` and in nearly every chunk of them, it took clearly more
        than the others' time (`_BARS`), and that is beyond the noise: of the chunks, and of the
        ranks among each other.
SLOW-2  A rank is compared with the median of the others, so that a host that slows up to half of them
        is found. Where more are slow, the ranks do different work, and none is named.
SLOW-3  A rank whose time of its own is a small part of the step is not why the gang waits, and it is not
        named.
SLOW-4  Where the gang is slower than it was and no rank is named, only that is said.
SLOW-5  A rank is named only in a gang whose ranks wait for each other. Where it fell behind the others
        by as much as its slowness says, they do not wait, and each does work of its own. Its arrivals
        alone are evidence only where they keep their distance, which those of ranks that do not wait
        lose by and by.
SLOW-6  A slowness that passed by itself, as that of a shard of longer texts, may come again: from then on
        a rank of the gang is named only after one and a half times as many steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

import msgspec

from holdfast.core.stragglers.gang import Chunk, GangPace
from holdfast.core.stragglers.values import (
    Finding,
    GangSlowed,
    PaceBlock,
    PaceMeasure,
    SlowRank,
    Steady,
)

LEAST_STEPS = 20
LEAST_CHUNKS = 4


class _PaceBar(msgspec.Struct, frozen=True):
    """The bounds that a rank must reach in a window of `times` the least steps and chunks: in the median
    `ratio` of the others' time, and in this share of chunks clearly more than they."""

    times: int
    ratio: float
    share: float


_BARS = (
    _PaceBar(1, 1.14, 1.0),
    _PaceBar(2, 1.13, 0.9),
    _PaceBar(3, 1.12, 0.85),
    _PaceBar(5, 1.12, 0.8),
    _PaceBar(8, 1.12, 0.75),
)
"""The short window is for a clear case, the others for noisier gangs."""
_CHUNK_LOG = math.log(1.07)
_STEADY_LOG = math.log(1.06)
_BEYOND = 6.0
_LEAST_NOISE = 0.02
_MOST_LIKE = 0.9
_OWN_SHARE = 0.6
_SLOWED_RATIO = 1.2
_SLOWED_STEPS = 30
_SLOWED_CHUNKS = 6
_BEFORE_CHUNKS = 12
_SAMPLE = 64
_PASSING = 1.5
_MOST_LOST = 0.3
_BOUND_CHUNKS = 14
_BOUND_LAG = 6
_BOUND_RATIO = 1.6
_CLEAR = 3.0


class GangJudge:
    """Judges one attempt of a gang, chunk by chunk."""

    def __init__(self) -> None:
        self._pace = GangPace()
        self._slow: dict[int, SlowRank] = {}
        self._passing_steps = 0.0  # SLOW-6

    @property
    def slow(self) -> Sequence[SlowRank]:
        """Return the ranks that are slow now."""
        return list(self._slow.values())

    def add_blocks(
        self, rank: int, blocks: Sequence[PaceBlock], now: float, sent_at: float, error: float
    ) -> None:
        """Add the blocks that a rank's agent told (see `GangPace.add_blocks`)."""
        self._pace.add_blocks(rank, blocks, now, sent_at, error)

    def judge(self, now: float) -> list[Finding]:
        """Return the findings about the gang since the last call."""
        found: list[Finding] = []
        for _ in self._pace.advance(now):
            found += self._look()
        return found

    def _look(self) -> list[Finding]:
        chunks = list(self._pace.chunks)
        found: list[Finding] = []
        for rank, slow in list(self._slow.items()):
            if _is_steady(chunks, slow):
                del self._slow[rank]
                lasted = _PASSING * (slow.at_step - slow.since_step)
                self._passing_steps = max(self._passing_steps, lasted)
                found.append(Steady(rank=rank, at_step=chunks[-1].last_step))
        for slow in _find_slow(chunks):
            if slow.rank not in self._slow:
                if slow.at_step - slow.since_step < self._passing_steps:
                    continue
                found.append(slow)
            self._slow[slow.rank] = slow
        if not self._slow and (slowed := _find_slowed(chunks)) is not None:
            found.append(slowed)
            self._pace.chunks.clear()
        return found


def _is_steady(chunks: Sequence[Chunk], slow: SlowRank) -> bool:
    window = _cut_window(chunks, slow.measure, 1)
    logs = [chunk.above[slow.measure].get(slow.rank) for chunk in window]
    known = [log for log in logs if log is not None]
    return bool(window) and len(known) == len(window) and median(known) < _STEADY_LOG


def _find_slow(chunks: Sequence[Chunk]) -> list[SlowRank]:
    newest = chunks[-1].above
    for measure in PaceMeasure:
        if measure not in newest or max(newest[measure].values()) < _CHUNK_LOG:
            continue
        for bar in _BARS:
            window = _cut_window(chunks, measure, bar.times)
            if not window:
                break
            found = _find_in(window, chunks, measure, bar)
            if found:
                return found
    return []


def _cut_window(chunks: Sequence[Chunk], measure: PaceMeasure, times: int) -> list[Chunk]:
    """Return the newest chunks of at least so many steps, or nothing where there are too few."""
    window: list[Chunk] = []
    steps = 0
    for chunk in reversed(chunks):
        if measure not in chunk.logs:
            return []
        window.append(chunk)
        steps += chunk.steps
        if steps >= times * LEAST_STEPS and len(window) >= times * LEAST_CHUNKS:
            return window[::-1]
    return []


def _find_in(
    window: Sequence[Chunk], chunks: Sequence[Chunk], measure: PaceMeasure, bar: _PaceBar
) -> list[SlowRank]:
    newest = window[-1].above[measure]
    suspects = [rank for rank, log in newest.items() if log >= _CHUNK_LOG]
    if not suspects or 2 * len(suspects) > len(newest):
        return []
    if measure is PaceMeasure.ARRIVAL and not _keep_distance(chunks):
        return []
    compared = [chunk.above[measure] for chunk in window]
    found = []
    for rank in suspects:
        logs = [each[rank] for each in compared if rank in each]
        if len(logs) < len(window) or median(logs) < math.log(bar.ratio):
            continue
        if sum(log >= _CHUNK_LOG for log in logs) < bar.share * len(logs):
            continue
        if not _falls_behind(rank, median(logs), window, chunks):
            found.append((rank, median(logs)))
    if not found:
        return []
    slow_ranks = {rank for rank, _ in found}
    calm = [rank for rank in newest if rank not in slow_ranks][:_SAMPLE]
    among = _measure_apart(chunks, measure, calm, len(window))
    doubt = _correlate(_list_runs(chunks, measure, [*calm, *slow_ranks], len(window)), len(window))
    noise = _measure_noise(chunks, measure, calm, len(window), doubt)
    named = []
    for rank, log in found:
        own = _measure_noise(chunks, measure, [rank], len(window), doubt)
        if log < _BEYOND * max(noise, own, among):
            continue
        slow = _describe(rank, log, window, chunks, measure)
        if slow is not None:
            named.append(slow)
    return named


def _falls_behind(rank: int, log: float, window: Sequence[Chunk], chunks: Sequence[Chunk]) -> bool:
    """Return whether a rank that is slow by `log` lost as much time to the others in the window as it
    would lose where they do not wait for it, also where that is not known (SLOW-5)."""
    first = max(0, len(chunks) - len(window) - 1)
    known = [chunk for chunk in chunks[first:] if rank in chunk.late]
    if len(known) < 2:
        return True
    begin, end = known[0], known[-1]
    steps = end.last_step - begin.last_step
    loses = steps * math.exp(median(chunk.wall for chunk in window)) * math.expm1(log)
    return end.late[rank] - begin.late[rank] > _MOST_LOST * loses


def _keep_distance(chunks: Sequence[Chunk]) -> bool:
    """Return whether the ranks are as far from each other after several chunks as after one, and by
    clearly more than their clocks may be wrong (SLOW-5)."""
    known = [chunk for chunk in chunks if chunk.late]
    if len(known) < _BOUND_CHUNKS:
        return False
    near, far = _measure_drift(known, 1), _measure_drift(known, _BOUND_LAG)
    return near > _CLEAR * median(chunk.error for chunk in known) and far <= _BOUND_RATIO * near


def _measure_drift(chunks: Sequence[Chunk], lag: int) -> float:
    """Return how far a rank's lateness moves within `lag` chunks, in the median."""
    pairs = zip(chunks, chunks[lag:], strict=False)
    moved = [
        abs(b.late[rank] - a.late[rank]) for a, b in pairs for rank in a.late if rank in b.late
    ]
    return median(moved) if moved else 0.0


def _list_runs(
    chunks: Sequence[Chunk], measure: PaceMeasure, ranks: Sequence[int], length: int
) -> list[list[float]]:
    """Return how far ranks are from their own middle, chunk after chunk: before the newest `length`
    chunks and in them, because a slow rank was not slow before."""
    compared = [chunk.above[measure] for chunk in chunks if measure in chunk.above]
    runs = []
    for part in (compared[:-length], compared[-length:]):
        for rank in ranks:
            logs = [each[rank] for each in part if rank in each]
            if logs:
                middle = median(logs)
                runs.append([log - middle for log in logs])
    return runs


def _measure_noise(
    chunks: Sequence[Chunk], measure: PaceMeasure, ranks: Sequence[int], length: int, doubt: float
) -> float:
    """Return by how much the median of a window of `length` chunks is uncertain by the noise of
    chunks. doubt: as `_correlate` returns."""
    runs = _list_runs(chunks, measure, ranks, length)
    deviation = _spread(runs) * (1 + 2 / len(chunks))  # a few chunks show less of it
    return max(_LEAST_NOISE, 1.25 * deviation) * math.sqrt(doubt / length)


def _spread(runs: Sequence[Sequence[float]]) -> float:
    return 1.4826 * median(abs(one) for run in runs for one in run) if runs else 0.0


def _correlate(runs: Sequence[Sequence[float]], length: int) -> float:
    """Return how many times the square of the uncertainty of a mean of `length` values is that of
    independent ones: what disturbs a rank often lasts for several chunks, which then say less. runs:
    values around 0 that follow one another, as `_list_runs` returns; far ones are accidents."""
    most = 3 * _spread(runs)
    squares = products = 0.0
    for run in runs:
        clipped = [min(most, max(-most, one)) for one in run]
        squares += sum(one * one for one in clipped)
        products += sum(one * after for one, after in pairwise(clipped))
    # A few values seem less alike than they are, because their own middle was taken from them.
    more = 1 / max(map(len, runs), default=1)
    like = min(_MOST_LIKE, max(0.0, products / squares + more)) if squares else 0.0
    return 1 + 2 * sum((1 - k / length) * like**k for k in range(1, length))


def _measure_apart(
    chunks: Sequence[Chunk], measure: PaceMeasure, calm: Sequence[int], length: int
) -> float:
    """Return how far the `calm` ranks are apart in windows of `length` chunks. What a slow rank does
    to the median of the others moves all calm ranks alike, so windows are judged one by one."""
    compared = [chunk.above[measure] for chunk in chunks if measure in chunk.above]
    apart = list[float]()
    for end in range(len(compared), length - 1, -length):
        part = compared[end - length : end]
        medians = [median(each[r] for each in part) for r in calm if all(r in e for e in part)]
        if len(medians) > 2:
            middle = median(medians)
            apart += [abs(one - middle) for one in medians]
    return 1.4826 * median(apart) if apart else 0.0


def _describe(
    rank: int, log: float, window: Sequence[Chunk], chunks: Sequence[Chunk], measure: PaceMeasure
) -> SlowRank | None:
    """Return the verdict, or None where the rank's own time is a small part of its step (SLOW-3)."""
    own = _mean(chunk.logs[measure][rank] for chunk in window)
    step = _mean(chunk.logs[PaceMeasure.STEP][rank] for chunk in window)
    if own < _OWN_SHARE * step:
        return None
    since = window[0].first_step
    for chunk in reversed(chunks):
        if measure not in chunk.logs or chunk.last_step > window[0].last_step:
            continue
        if chunk.above[measure].get(rank, 0.0) < _CHUNK_LOG:
            break
        since = chunk.first_step
    return SlowRank(
        rank=rank,
        measure=measure,
        ratio=round(math.exp(log), 3),
        since_step=since,
        at_step=window[-1].last_step,
        seconds=own,
        others_seconds=own / math.exp(log),
        step_seconds=step,
    )


def _mean(logs: Iterable[float]) -> float:
    return math.exp(median(logs))


def _find_slowed(chunks: Sequence[Chunk]) -> GangSlowed | None:
    """Return the finding that the gang's steps became slower; None where they did not (SLOW-4)."""
    walls = [chunk.wall for chunk in chunks]
    steps, count = 0, 0
    for chunk in reversed(chunks):
        steps, count = steps + chunk.steps, count + 1
        if steps >= _SLOWED_STEPS and count >= _SLOWED_CHUNKS:
            break
    else:
        return None
    before, now = walls[:-count], walls[-count:]
    if len(before) < _BEFORE_CHUNKS:
        return None
    was, log = median(before), median(now) - median(before)
    noise = 1.4826 * median(abs(wall - was) for wall in before)
    if log < math.log(_SLOWED_RATIO) or log < _BEYOND * noise:
        return None
    if min(now) - was < math.log(_SLOWED_RATIO) * 0.75 or max(before[-3:]) - was > log / 2:
        return None
    return GangSlowed(
        ratio=round(math.exp(log), 3),
        since_step=chunks[-count].first_step,
        at_step=chunks[-1].last_step,
        before_seconds=math.exp(was),
        step_seconds=math.exp(median(now)),
    )
