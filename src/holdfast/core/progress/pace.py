"""The rate of a job's steps, and the time that is left, estimated from the beats that were seen.

PACE-1  An estimate is never negative, and where a step went back, as in a new attempt, only what was
        seen since then counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

WINDOW_SECONDS = 300.0
MAX_SEEN = 64


class SeenStep(msgspec.Struct, frozen=True):
    """A step, and when its beat came: seconds on any clock that all of them share."""

    at: float
    step: int


class Pace(msgspec.Struct, frozen=True):
    """Looks at one job's progress, oldest first: no step and no time is below the one before it."""

    seen: tuple[SeenStep, ...] = ()


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


def add_step(pace: Pace, new: SeenStep) -> Pace:
    """Return the pace with one more beat. A step below the last one begins anew (PACE-1), and a beat
    that is older than the last one changes nothing."""
    last = pace.seen[-1] if pace.seen else None
    if last is None or new.step < last.step:
        return Pace((new,)) if last is None or new.at >= last.at else pace
    if new.at <= last.at:
        return pace if new.at < last.at else Pace((*pace.seen[:-1], new))
    since = new.at - WINDOW_SECONDS
    kept = [one for one in pace.seen if one.at >= since] or [last]
    if len(kept) >= MAX_SEEN:
        kept = kept[::2]  # half as dense, so that the window keeps its length
    return Pace((*kept, new))


def read_pace(steps: Iterable[SeenStep]) -> Pace:
    """Return the pace of several beats, in the order they were seen."""
    pace = Pace()
    for step in steps:
        pace = add_step(pace, step)
    return pace


def estimate(pace: Pace, total: int | None, now: float) -> Estimate | None:
    """Return how far the job is at `now`; None where no step was seen.

    The time that is left counts from the last beat. A job that is late for its next steps has at
    least as long left as the steps take, so the time does not run out while it stands still.
    """
    if not pace.seen:
        return None
    first, last = pace.seen[0], pace.seen[-1]
    total = total if total is not None and total > 0 else None
    span = last.at - first.at
    rate = (last.step - first.step) / span if span > 0 and last.step > first.step else None
    if rate is None or not math.isfinite(rate):
        return Estimate(last.step, total)
    if total is None:
        return Estimate(last.step, None, rate)
    rest = max(0.0, (total - last.step) / rate)
    waited = min(max(0.0, now - last.at), 1.0 / rate)  # no more than one step's time
    return Estimate(last.step, total, rate, max(0.0, rest - waited) if rest else 0.0)
