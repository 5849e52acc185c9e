"""The blocks of all ranks of a gang → chunks: stretches of steps that all of them did.

CHUNK-1  A chunk is made once, when each rank that still tells blocks has done its steps. A rank that told
         none for `LOST_SECONDS` is waited for no longer, and comes back with its next block.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import msgspec

from holdfast.core.stragglers.values import PaceBlock, PaceMeasure

LEAST_STEPS = 5
LOST_SECONDS = 60.0
WARM_STEPS = 10
"""Steps after the first beat that are compared with nothing: they compile, and fill caches."""
MAX_CHUNKS = 40
_KEPT_BLOCKS = 32
_TINY = 1e-6


class Chunk(msgspec.Struct, frozen=True):
    """The same steps of all ranks. logs: measure → rank → the logarithm of its seconds a step.
    above: how far that is above the median of the others. wall: the logarithm of the gang's seconds a
    step. late: rank → how many seconds after the middle of the ranks it came to the last step; empty
    where that is not known. error: by how many seconds that may be wrong."""

    first_step: int
    last_step: int
    logs: Mapping[PaceMeasure, Mapping[int, float]]
    above: Mapping[PaceMeasure, Mapping[int, float]]
    wall: float
    late: Mapping[int, float] = {}
    error: float = 0.0

    @property
    def steps(self) -> int:
        """Return how many steps the chunk has."""
        return self.last_step - self.first_step


def make_chunk(
    first_step: int,
    last_step: int,
    logs: Mapping[PaceMeasure, Mapping[int, float]],
    arrived: Mapping[int, tuple[float, float]],
) -> Chunk:
    """Return a chunk with its ranks compared (SLOW-2)."""
    above = {measure: _compare_others(each) for measure, each in logs.items()}
    wall = median(logs[PaceMeasure.STEP].values())
    late: dict[int, float] = {}
    if arrived.keys() >= logs[PaceMeasure.STEP].keys():
        middle = median(at for at, _ in arrived.values())
        late = {rank: at - middle for rank, (at, _) in arrived.items()}
    error = max((error for _, error in arrived.values()), default=0.0)
    return Chunk(first_step, last_step, logs, above, wall, late, error)


def _compare_others(logs: Mapping[int, float]) -> dict[int, float]:
    """Return how far each rank is above the median of the other ranks."""
    order = sorted(logs, key=logs.__getitem__)
    values = [logs[rank] for rank in order]
    low, high = (len(order) - 2) // 2, (len(order) - 1) // 2  # the middle without one of them
    found = {}
    for place, rank in enumerate(order):
        middle = values[low + (low >= place)] + values[high + (high >= place)]
        found[rank] = values[place] - middle / 2
    return found


class _DatedBlock(msgspec.Struct, frozen=True):
    """A block on the controller's clock: when its last beat came, and how wrong that may be."""

    at: float
    error: float
    block: PaceBlock


class GangPace:
    """The pace of one attempt of a gang: what its ranks told lately, and the chunks made of that."""

    def __init__(self) -> None:
        self._told: dict[int, deque[_DatedBlock]] = {}
        self._heard: dict[int, float] = {}
        self._done: int | None = None  # the last step of the last chunk
        self._start: int | None = None
        self.chunks: deque[Chunk] = deque(maxlen=MAX_CHUNKS)

    def add_blocks(
        self, rank: int, blocks: Sequence[PaceBlock], now: float, sent_at: float, error: float
    ) -> None:
        """Take a rank's blocks, which came at `now`. sent_at: when the rank's host sent them, on the
        same clock, and error: by how many seconds that may be wrong."""
        told = self._told.setdefault(rank, deque(maxlen=_KEPT_BLOCKS))
        for block in blocks:
            if told and block.last_step <= told[-1].block.last_step:
                told.clear()  # the steps began anew
                self._done = None
            told.append(_DatedBlock(sent_at - block.age_seconds, error, block))
        if blocks:
            self._heard[rank] = now

    def advance(self, now: float) -> Iterator[Chunk]:
        """Yield the chunks that can be made now, each once (CHUNK-1)."""
        ranks = [rank for rank, at in self._heard.items() if now - at <= LOST_SECONDS]
        if len(ranks) < 2:
            return
        frontier = min(self._told[rank][-1].block.last_step for rank in ranks)
        begin = max(_first_step(self._told[rank][0].block) for rank in ranks)
        if self._start is None:
            self._start = begin
        if self._done is None:
            self._done = max(begin, self._start + WARM_STEPS)
        self._done = max(self._done, begin)
        while frontier - self._done >= LEAST_STEPS:
            end = self._find_end(ranks, self._done, frontier)
            logs, arrived = self._compare(ranks, self._done, end)
            begun, self._done = self._done, end
            self._drop_done(end)
            if logs:
                chunk = make_chunk(begun, end, logs, arrived)
                self.chunks.append(chunk)
                yield chunk

    def _drop_done(self, end: int) -> None:
        """Drop the blocks that no further chunk needs, except the newest block of each rank."""
        for told in self._told.values():
            while len(told) > 1 and told[0].block.last_step <= end:
                told.popleft()

    def _find_end(self, ranks: Sequence[int], begin: int, frontier: int) -> int:
        """Return the first step from which on every rank's block has ended since `begin`."""
        ends = []
        for rank in ranks:
            ends.append(
                next(
                    t.block.last_step
                    for t in self._told[rank]
                    if t.block.last_step >= begin + LEAST_STEPS
                )
            )
        return min(max(ends), frontier)

    def _compare(
        self, ranks: Sequence[int], begin: int, end: int
    ) -> tuple[Mapping[PaceMeasure, Mapping[int, float]], Mapping[int, tuple[float, float]]]:
        """Return the value of each measure that all ranks have over these steps, the instant at
        which each rank came to the last step, and how wrong that instant may be."""
        owns, steps, cpus = dict[int, float](), dict[int, float](), dict[int, float]()
        arrived: dict[int, tuple[float, float]] = {}
        for rank in ranks:
            weight = 0
            own = step = cpu = 0.0
            for told in self._told[rank]:
                block = told.block
                share = min(end, block.last_step) - max(begin, _first_step(block))
                if share <= 0:
                    continue
                weight += share
                step += share * _log(block.seconds)
                own += share * _log(block.own_seconds)
                cpu += share * _log(block.cpu_seconds)
                if block.last_step == end:
                    arrived[rank] = (told.at, told.error)
            if 2 * weight < end - begin:
                return {}, {}
            steps[rank] = step / weight
            if own == own:  # not NaN: all of its blocks said it
                owns[rank] = own / weight
            if cpu == cpu:
                cpus[rank] = cpu / weight
        whole: dict[PaceMeasure, Mapping[int, float]] = {PaceMeasure.STEP: steps}
        if len(owns) == len(ranks):
            whole[PaceMeasure.OWN] = owns  # better than processor time and arrivals
            return whole, arrived
        if len(cpus) == len(ranks):
            whole[PaceMeasure.CPU] = cpus
        late = _find_lateness(arrived, len(ranks))
        seconds = math.exp(median(steps.values()))
        # Ranks that wait for each other come to a step within one step's time of each other. Where one
        # is further away, they do not wait, and what their arrivals are apart is where they began.
        if late and max(map(abs, late.values())) < seconds:
            whole[PaceMeasure.ARRIVAL] = {
                rank: math.log(max(seconds + late[rank], _TINY)) for rank in late
            }
        return whole, arrived


def _log(seconds: float | None) -> float:
    """Return the logarithm, NaN for what is not known."""
    return math.nan if seconds is None else math.log(seconds if seconds > _TINY else _TINY)


def _first_step(block: PaceBlock) -> int:
    return block.last_step - block.steps


def _find_lateness(arrived: Mapping[int, tuple[float, float]], ranks: int) -> dict[int, float]:
    """Return how many seconds after the middle of the ranks each one's beat came, less what the
    clocks may be wrong by; nothing where the beat of a rank is missing."""
    if len(arrived) < ranks:
        return {}
    middle = median(at for at, _ in arrived.values())
    least = min(error for _, error in arrived.values())
    found = {}
    for rank, (at, error) in arrived.items():
        late, doubt = at - middle, error + least
        found[rank] = math.copysign(max(0.0, abs(late) - doubt), late)
    return found
