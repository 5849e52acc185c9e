"""Rates and times left: never negative, right at a constant pace, and new after a step back."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.progress.pace import WINDOW_SECONDS, Estimate, StepMeter, estimate, find_still

STEPS = st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 2**53)), max_size=80)


def measure(*steps: tuple[float, int]) -> StepMeter:
    meter = StepMeter()
    for at, step in steps:
        meter.beat(at, step)
    return meter


@given(STEPS, st.none() | st.integers(-5, 2**53), st.floats(0, 1e6))
def test_nothing_is_ever_negative_or_endless(
    steps: list[tuple[float, int]], total: int | None, later: float
) -> None:
    """PACE-1"""
    steps = sorted(steps, key=lambda one: one[0])
    now = (steps[-1][0] if steps else 0.0) + later
    rate = measure(*steps).find_rate(now)
    found = estimate(steps[-1][1] if steps else None, total, rate, later)
    assert (found is None) is (not steps)
    if found is not None:
        for value in (found.rate, found.left_seconds):
            assert value is None or (value >= 0 and math.isfinite(value))


@given(STEPS, st.integers(0, 1000), st.integers(1, 1000), st.integers(2, 200), st.floats(0.01, 50))
def test_a_constant_pace_is_found_also_after_a_step_back(
    before: list[tuple[float, int]], start: int, each: int, count: int, gap: float
) -> None:
    """PACE-1: steps that begin lower, as those of a new epoch, are judged by themselves alone."""
    begin = max((at for at, _ in before), default=0.0) + 1.0
    high = max((0, *(step for _, step in before)))
    meter = measure(*sorted(before, key=lambda one: one[0]), (begin, high + start + each))
    for n in range(count):
        meter.beat(begin + 1 + n * gap, high + start + n * each)
    end = begin + 1 + (count - 1) * gap
    rate = meter.find_rate(end)
    assert rate is not None
    assert math.isclose(rate, each / gap, rel_tol=1e-3)
    found = estimate(count * each, (count + 10) * each, rate, 0.0)
    assert found is not None
    assert math.isclose(found.left_seconds or 0, 10 * gap, rel_tol=1e-3)


def test_a_job_that_begins_at_a_later_step_has_the_rate_of_its_own_steps() -> None:
    meter = measure(*((float(n), 5000 + n) for n in range(20)))
    assert meter.find_rate(19.0) == 1.0
    assert measure((0.0, 5000)).find_rate(1.0) is None


def test_the_rate_is_that_of_the_last_five_minutes() -> None:
    slow = [(10.0 * n, n) for n in range(100)]
    fast = [(1000.0 + n, 100 + n) for n in range(int(WINDOW_SECONDS) + 2)]
    rate = measure(*slow, *fast).find_rate(fast[-1][0])
    assert rate == pytest.approx(1.0)


@pytest.mark.parametrize("steps", [lambda n: 7, lambda n: 7 + n % 2, lambda n: n % 20])
def test_a_step_that_stands_or_goes_to_and_fro_has_no_rate(steps: object) -> None:
    """PACE-4."""
    assert callable(steps)
    meter = measure(*((float(n), n) for n in range(5)))
    for n in range(400):
        meter.beat(10.0 + n, steps(n))
    assert meter.find_rate(410.0) is None
    assert meter.moved_at is not None
    assert meter.moved_at <= 30.0


def test_a_counter_that_begins_anew_each_epoch_moves_forward() -> None:
    """PACE-4."""
    meter = measure(*((float(n), n % 100) for n in range(1000)))
    assert meter.moved_at == 999.0
    assert meter.find_rate(999.0) == pytest.approx(1.0)


def test_a_slow_job_keeps_its_rate_between_two_steps() -> None:
    meter = measure(*((1200.0 * n, n) for n in range(4)))
    assert meter.find_rate(3600.0 + 1100.0) == pytest.approx(1 / 1200)
    assert meter.find_rate(3600.0 + 5000.0) is None
    assert (meter.longest_seconds, meter.moves) == (1200.0, 4)


def test_beats_that_come_while_the_step_stands_are_told_after_a_minute() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert find_still(now, now - timedelta(seconds=480)) == 480
    assert find_still(now, now - timedelta(seconds=30)) is None
    assert find_still(now, None) is None


def test_without_a_total_there_is_a_rate_alone() -> None:
    assert estimate(20, None, 2.0, 0) == Estimate(20, None, 2.0)
    assert estimate(20, 0, 2.0, 0) == Estimate(20, None, 2.0)
    assert estimate(None, 100, None, 0) is None
    assert estimate(3, 100, None, 0) == Estimate(3, 100)


def test_a_job_beyond_its_total_has_nothing_left() -> None:
    assert estimate(20, 15, 2.0, 1) == Estimate(20, 15, 2.0, 0.0)


def test_the_time_left_does_not_run_out_while_the_job_stands_still() -> None:
    late = estimate(20, 40, 2.0, 10_000)
    assert late is not None
    assert late.left_seconds == 9.5  # half a second, the time of one step, has gone
