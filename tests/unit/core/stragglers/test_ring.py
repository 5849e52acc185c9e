"""A rank's beats become blocks of neighbouring steps, in a bounded memory (PACE-2, PACE-3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.stragglers.ring import PaceRing
from holdfast.core.stragglers.values import MAX_BLOCKS, PaceBlock


def beat_steps(
    ring: PaceRing, steps: range, seconds: float, *, wait: float | None = None, at: float = 50.0
) -> float:
    for step in steps:
        at += seconds
        full = ring.beat(at, step, None if wait is None else step * wait)
        if ring.wants_cpu(at):
            ring.read_cpu(at, step * 0.25)
        if full:
            ring.end()
    return at


def test_a_block_holds_the_medians_of_its_steps() -> None:
    ring = PaceRing()
    now = beat_steps(ring, range(10, 26), 0.5, wait=0.125)
    first, second, third = ring.take_blocks(now + 2.0)
    assert (first.last_step, second.last_step, third.last_step) == (15, 20, 25)
    assert (second.steps, second.seconds, second.own_seconds) == (5, 0.5, 0.375)
    assert second.cpu_seconds == 0.25
    assert third.age_seconds == 2.0
    assert ring.take_blocks(now + 3.0) == [], "each is told once"


def test_one_slow_step_does_not_change_the_median() -> None:
    ring = PaceRing()
    at = beat_steps(ring, range(3), 1.0)
    at = beat_steps(ring, range(3, 4), 30.0, at=at)
    beat_steps(ring, range(4, 6), 1.0, at=at)
    assert [block.seconds for block in ring.take_blocks(200.0)] == [1.0]


@given(st.integers(0, 99), st.integers(0, 99), st.floats(0.05, 3.0))
def test_ranks_that_begin_anywhere_end_their_blocks_at_the_same_steps(
    one: int, other: int, seconds: float
) -> None:
    """PACE-2"""
    ends = []
    for first in (one, other):
        ring, told, at = PaceRing(), list[PaceBlock](), 50.0
        for step in range(first, 1000):
            at = beat_steps(ring, range(step, step + 1), seconds, at=at)
            told += ring.take_blocks(at)
        ends.append({block.last_step for block in told if block.last_step > 400})
    few, many = sorted(ends, key=len)
    assert few <= many
    assert len(few) >= 10


def test_a_fast_job_tells_a_block_a_second() -> None:
    """PACE-3"""
    ring = PaceRing()
    told: list[PaceBlock] = []
    at = 50.0
    for _ in range(10):
        first = round(at * 1000)
        at = beat_steps(ring, range(first, first + 1000), 0.001, at=at)
        told += ring.take_blocks(at)
    assert 5 <= len(told) <= 10


def test_steps_in_a_section_are_no_part_of_a_block() -> None:
    ring = PaceRing()
    at = beat_steps(ring, range(6), 1.0)
    ring.skip()
    beat_steps(ring, range(6, 16), 1.0, at=at)
    assert [block.last_step for block in ring.take_blocks(100.0)] == [5, 15]


def test_steps_that_begin_anew_begin_a_new_block() -> None:
    ring = PaceRing()
    at = beat_steps(ring, range(100, 104), 1.0)
    beat_steps(ring, range(11), 1.0, at=at)
    assert [(b.last_step, b.steps) for b in ring.take_blocks(100.0)] == [(5, 5), (10, 5)]


def test_what_is_not_told_is_bounded() -> None:
    ring = PaceRing()
    beat_steps(ring, range(1000), 1.0)
    assert len(ring.take_blocks(2000.0)) == MAX_BLOCKS


def test_a_beat_of_another_process_is_no_wait() -> None:
    ring = PaceRing()
    ring.beat(50.0, 0, 90.0)
    at = beat_steps(ring, range(1, 12), 1.0, wait=0.25)
    first, second = ring.take_blocks(at)
    assert first.own_seconds is None
    assert second.own_seconds == pytest.approx(0.75)
