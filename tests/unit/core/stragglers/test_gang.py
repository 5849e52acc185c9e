"""Ranks are compared over the steps that all of them did, and arrivals only beyond the clocks' error."""

from __future__ import annotations

import math

import pytest

from holdfast.core.stragglers.clock import HostClock
from holdfast.core.stragglers.gang import LOST_SECONDS, Chunk, GangPace
from holdfast.core.stragglers.judge import GangJudge
from holdfast.core.stragglers.values import PaceBlock, PaceMeasure, SlowRank, Steady


def block(last: int, seconds: float = 1.0, own: float | None = None, age: float = 0.0) -> PaceBlock:
    return PaceBlock(last_step=last, steps=5, seconds=seconds, own_seconds=own, age_seconds=age)


def feed(pace: GangPace, rank: int, last: int, now: float, error: float = 0.001) -> None:
    pace.add_blocks(rank, [block(last)], now, now, error)


def test_a_chunk_waits_for_the_slowest_teller_and_is_made_once() -> None:
    """CHUNK-1"""
    pace = GangPace()
    for last in (5, 10, 15, 20):
        feed(pace, 0, last, 100.0)
    assert list(pace.advance(100.0)) == []
    for last in (5, 10, 15):
        feed(pace, 1, last, 101.0)
    (chunk,) = pace.advance(101.0)
    assert (chunk.first_step, chunk.last_step) == (10, 15)
    assert list(pace.advance(102.0)) == []


def test_a_rank_that_tells_nothing_any_more_is_waited_for_no_longer() -> None:
    """CHUNK-1"""
    pace = GangPace()
    for rank in range(3):
        for last in (5, 10, 15):
            feed(pace, rank, last, 100.0)
    assert len(list(pace.advance(100.0))) == 1
    for rank in range(2):
        feed(pace, rank, 20, 100.0 + LOST_SECONDS + 1)
    (chunk,) = pace.advance(100.0 + LOST_SECONDS + 1)
    assert set(chunk.logs[PaceMeasure.STEP]) == {0, 1}


def play_arrivals(late: float, error: float) -> list[Chunk]:
    """Two hosts whose ranks beat at the same steps, the second `late` seconds after the first."""
    pace = GangPace()
    for number in range(1, 9):
        for rank in range(2):
            at = 100.0 + 5 * number + rank * late
            pace.add_blocks(rank, [block(5 * number)], at, at, error)
    return list(pace.advance(150.0))


@pytest.mark.parametrize(("late", "error", "seen"), [(0.5, 0.01, True), (0.5, 0.3, False)])
def test_arrivals_are_compared_only_beyond_the_error_of_the_clocks(
    late: float, error: float, seen: bool
) -> None:
    for chunk in play_arrivals(late, error):
        logs = chunk.logs[PaceMeasure.ARRIVAL]
        assert (math.exp(logs[1]) - math.exp(logs[0]) > 0.3) == seen


@pytest.mark.parametrize(("late", "seen"), [(0.9, True), (2.8, False)])
def test_ranks_that_do_not_wait_for_each_other_are_not_compared_by_arrivals(
    late: float, seen: bool
) -> None:
    """A rank that comes to a step later than the next one is due began later: it is not slow."""
    chunks = play_arrivals(late, 0.01)
    assert chunks
    assert all((PaceMeasure.ARRIVAL in chunk.logs) is seen for chunk in chunks)


def test_a_clock_is_as_wrong_as_the_shortest_round_trip() -> None:
    """CLOCK-1"""
    clock = HostClock()
    for number, delay in enumerate((0.5, 0.003, 0.2, 0.4)):
        clock.note_sync(1000.0 + number + delay, 70.0 + number, 0.004)
    at, error = clock.translate(75.0)
    assert at == pytest.approx(1005.003)
    assert error == pytest.approx(0.004, abs=0.001)


def test_a_host_that_booted_anew_has_a_new_clock() -> None:
    clock = HostClock()
    clock.note_sync(1000.0, 70_000.0, 0.001)
    clock.note_sync(1100.0, 5.0, 0.001)
    assert clock.translate(6.0)[0] == pytest.approx(1101.0)


def judge_owns(owns: list[tuple[float, ...]]) -> list[object]:
    """Judge a gang whose ranks' own times of a step are these, five steps each."""
    judge, found, now = GangJudge(), list[object](), 100.0
    for number, each in enumerate(owns, 1):
        wall = max(each)
        now += 5 * wall
        for rank, own in enumerate(each):
            judge.add_blocks(rank, [block(5 * number, wall, own)], now, now, 0.001)
        found += judge.judge(now)
    return found


def test_a_rank_is_named_once_and_told_when_it_keeps_up_again() -> None:
    found = judge_owns([(1, 1, 1.3)] * 12 + [(1, 1, 1)] * 8)
    assert [type(one) for one in found] == [SlowRank, Steady]


def test_a_rank_whose_own_time_is_a_small_part_of_the_step_is_not_named() -> None:
    """SLOW-3"""
    judge, now = GangJudge(), 100.0
    for number in range(1, 20):
        now += 5.0
        for rank, own in enumerate((0.1, 0.1, 0.2)):
            judge.add_blocks(rank, [block(5 * number, 1.0, own)], now, now, 0.001)
        assert judge.judge(now) == []


def test_ranks_that_do_different_work_are_not_named() -> None:
    """SLOW-2"""
    assert judge_owns([(1, 1, 1.5, 1.5, 1.5)] * 20) == []
