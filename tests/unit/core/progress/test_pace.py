"""Rates and times left: never negative, right at a constant pace, and new after a step back."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.progress.pace import (
    MAX_SEEN,
    WINDOW_SECONDS,
    Estimate,
    Pace,
    SeenStep,
    add_step,
    estimate,
    read_pace,
)

MOMENTS = st.floats(0, 1e9, allow_nan=False)
STEPS = st.lists(st.builds(SeenStep, MOMENTS, st.integers(-5, 2**62)), max_size=80)


@given(STEPS, st.none() | st.integers(-5, 2**62), MOMENTS)
def test_nothing_is_ever_negative_or_endless(
    steps: list[SeenStep], total: int | None, now: float
) -> None:
    """PACE-1"""
    found = estimate(read_pace(steps), total, now)
    assert (found is None) is (not steps)
    if found is not None:
        for value in (found.rate, found.left_seconds):
            assert value is None or (value >= 0 and math.isfinite(value))


@given(STEPS)
def test_what_is_kept_only_rises_and_is_bounded(steps: list[SeenStep]) -> None:
    seen = read_pace(steps).seen
    assert len(seen) <= MAX_SEEN
    for before, after in itertools.pairwise(seen):
        assert before.at < after.at
        assert before.step <= after.step


@given(STEPS, st.integers(0, 1000), st.integers(1, 1000), st.integers(2, 200), st.floats(0.01, 50))
def test_a_constant_pace_is_found_also_after_a_step_back(
    before: list[SeenStep], start: int, each: int, count: int, gap: float
) -> None:
    """PACE-1: a new attempt that begins lower is judged by its own steps alone."""
    begin = max((one.at for one in before), default=0.0) + 1.0
    high = max((0, *(one.step for one in before)))
    older = read_pace([*before, SeenStep(begin, high + start + 1)])
    anew = [SeenStep(begin + 1 + n * gap, start + n * each) for n in range(count)]
    pace = older
    for one in anew:
        pace = add_step(pace, one)
    total = anew[-1].step + 10 * each
    found = estimate(pace, total, anew[-1].at)
    assert found is not None
    assert found.step == anew[-1].step
    if gap <= WINDOW_SECONDS and all(a.at < b.at for a, b in itertools.pairwise(anew)):
        assert found.rate is not None
        assert math.isclose(found.rate, each / gap, rel_tol=1e-3)
        assert found.left_seconds is not None
        assert math.isclose(found.left_seconds, 10 * gap, rel_tol=1e-3)


def test_without_a_total_there_is_a_rate_alone() -> None:
    pace = read_pace([SeenStep(0, 0), SeenStep(10, 20)])
    assert estimate(pace, None, 10) == Estimate(20, None, 2.0)
    assert estimate(pace, 0, 10) == Estimate(20, None, 2.0)
    assert estimate(Pace(), 100, 10) is None
    assert estimate(read_pace([SeenStep(5, 3)]), 100, 10) == Estimate(3, 100)


def test_a_job_beyond_its_total_has_nothing_left() -> None:
    assert estimate(read_pace([SeenStep(0, 0), SeenStep(10, 20)]), 15, 11) == Estimate(
        20, 15, 2.0, 0.0
    )


def test_the_time_left_does_not_run_out_while_the_job_stands_still() -> None:
    pace = read_pace([SeenStep(0, 0), SeenStep(10, 20)])
    late = estimate(pace, 40, 10_000)
    assert late is not None
    assert late.left_seconds == 9.5  # half a second, the time of one step, has gone
