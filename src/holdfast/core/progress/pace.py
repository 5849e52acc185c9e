"""The rate of a job's steps, and the time that is left, from the beats that its agent saw.

PACE-1  An estimate is never negative, and where a step went back, as in a new attempt, only what was
        seen since then counts.
PACE-4  A step moves the work forward only if it is none of the last `REMEMBERED` ones: a step that is
        told again, or steps to and fro, are no progress, and have no rate after `WINDOW_SECONDS`.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import NamedTuple

import msgspec

WINDOW_SECONDS = 300.0
STILL_SECONDS = 60.0
"""Beats that come for so long without another step are told."""
MAX_SEEN = 64
REMEMBERED = 64
_LEAST_SECONDS = 1.0  # steps closer to each other than this are one look
_LATE_STEPS = 3.0  # a step that takes so many times as long as the last ones is no pace any more


class SeenStep(NamedTuple):
    """A step, and when its beat came: seconds on any clock that all of them share."""

    at: float
    step: int


class StepMeter:
    """One task's steps, as its agent sees them: their rate, and when they last moved forward.
    longest_seconds: the longest time that passed between two moves forward. moves: how many there
    were."""

    __slots__ = ("_recent", "_seen", "longest_seconds", "moved_at", "moves")

    def __init__(self) -> None:
        self._seen: list[SeenStep] = []
        self._recent: deque[int] = deque(maxlen=REMEMBERED)
        self.moved_at: float | None = None
        self.moves = 0
        self.longest_seconds = 0.0

    def beat(self, at: float, step: int) -> None:
        """Note a step at the instant `at`, which is no earlier than the instant of the step
        before."""
        last = self._seen[-1] if self._seen else None
        if last is not None and step == last.step:
            return
        if step not in self._recent:  # PACE-4
            if self.moved_at is not None:
                self.longest_seconds = max(self.longest_seconds, at - self.moved_at)
            self.moved_at, self.moves = at, self.moves + 1
            self._recent.append(step)
        if last is None or step < last.step:
            self._seen = [SeenStep(at, step)]
            return
        if len(self._seen) > 1 and last.at - self._seen[-2].at < _LEAST_SECONDS:
            self._seen.pop()
        kept = [one for one in self._seen if one.at >= at - WINDOW_SECONDS] or [last]
        if len(kept) >= MAX_SEEN:
            kept = kept[::2]  # half as dense, so that the window keeps its length
        self._seen = [*kept, SeenStep(at, step)]

    def find_rate(self, now: float) -> float | None:
        """Return the steps in a second of the last `WINDOW_SECONDS`; None where it is not known, or
        where the steps do not move any more."""
        if len(self._seen) < 2 or self.moved_at is None:
            return None
        first, last = self._seen[0], self._seen[-1]
        span = last.at - first.at
        rate = (last.step - first.step) / span if span > 0 else 0.0
        late = WINDOW_SECONDS if rate <= 0 else max(WINDOW_SECONDS, _LATE_STEPS / rate)
        return rate if 0 < rate < float("inf") and now - self.moved_at <= late else None


class Estimate(msgspec.Struct, frozen=True):
    """How far a job is. rate: steps in a second; left_seconds: until its total. None: not known."""

    step: int
    total: int | None = None
    rate: float | None = None
    left_seconds: float | None = None


def say_unbeaten(waited: str, *, beats: bool) -> str:
    """Return what an attempt without a beat does. waited: the time since its start. beats: the job
    sent beats in an earlier attempt, so this one loads; another may be of a program that sends none.
    """
    return f"{'loading' if beats else 'running'} for {waited} (no beat yet)"


def find_still(beat_at: datetime | None, moved_at: datetime | None) -> float | None:
    """Return for how many seconds beats went on to come while the step stood; None where it
    moves."""
    if beat_at is None or moved_at is None:
        return None
    seconds = (beat_at - moved_at).total_seconds()
    return seconds if seconds >= STILL_SECONDS else None


def estimate(
    step: int | None, total: int | None, rate: float | None, age_seconds: float
) -> Estimate | None:
    """Return how far a job is; None where no step was seen. age_seconds: since its last beat.

    The time that is left counts from the last beat. A job that is late for its next steps has at
    least as long left as the steps take, so the time does not run out while it stands still.
    """
    if step is None:
        return None
    total = total if total is not None and total > 0 else None
    if rate is None or rate <= 0 or total is None:
        return Estimate(step, total, rate)
    rest = max(0.0, (total - step) / rate)
    waited = min(max(0.0, age_seconds), 1.0 / rate)  # no more than one step's time
    return Estimate(step, total, rate, max(0.0, rest - waited))
