"""The judge of stragglers on simulated gangs (SLOW-1…4): a slow rank is named soon, and a healthy gang's
ranks are not.

The seeds are fixed; `bench` has the same on thousands of hours.
"""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from bench.straggler_traces import ApartTrace, Trace, play, play_apart

from holdfast.core.stragglers.judge import GangJudge
from holdfast.core.stragglers.values import Finding, PaceBlock, SlowRank

SOON_STEPS = 30


@pytest.mark.parametrize("tells", ["own", "cpu"])
@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_is_slow_by_a_fifth_is_named_within_thirty_steps(tells: str, seed: int) -> None:
    """SLOW-1"""
    trace = Trace(slow=(3,), slow_from=150, steps=200, tells=tells)
    named = play(trace, seed).named
    assert [found.rank for _, found in named] == [3]
    ((step, found),) = named
    assert step - trace.slow_from <= SOON_STEPS
    assert abs(found.since_step - trace.slow_from) <= 10
    assert found.ratio == pytest.approx(1.2, abs=0.1)


@pytest.mark.parametrize("ranks", [2, 3, 16])
def test_a_gang_of_any_size_has_its_slow_rank_named(ranks: int) -> None:
    trace = Trace(ranks=ranks, slow=(1,), slow_from=150, steps=230)
    assert [found.rank for _, found in play(trace, 1).named] == [1]


def test_a_rank_that_was_slow_from_the_first_step_is_named() -> None:
    trace = Trace(slow=(2,), slow_from=0, steps=80)
    named = play(trace, 3).named
    assert [found.rank for _, found in named] == [2]
    assert named[0][0] <= trace.warm_up + SOON_STEPS


def test_a_host_whose_ranks_are_all_slow_has_them_all_named() -> None:
    """SLOW-2"""
    trace = Trace(ranks=8, slow=(4, 5, 6, 7), slow_from=150, steps=220)
    assert {found.rank for _, found in play(trace, 5).named} == {4, 5, 6, 7}


@pytest.mark.parametrize("tells", ["own", "cpu", "nothing"])
@pytest.mark.parametrize("seed", range(2))
def test_a_healthy_gang_has_no_rank_named(tells: str, seed: int) -> None:
    found = play(Trace(steps=900, tells=tells), seed)
    assert (found.named, found.slowed) == ((), ())


def test_a_noisy_healthy_gang_has_no_rank_named() -> None:
    assert play(Trace(steps=900, noise=0.12, drift=0.02), 2).named == ()


def test_ranks_that_cannot_be_told_apart_are_not_named_but_the_gang_is() -> None:
    """SLOW-4: the collective spins, so processor time says the same of the slow rank and of those that
    wait for it."""
    found = play(Trace(slow=(3,), slow_from=300, steps=500, ratio=1.4, tells="nothing"), 4)
    assert found.named == ()
    ((_, slowed),) = found.slowed
    assert slowed.ratio == pytest.approx(1.35, abs=0.1)
    assert abs(slowed.since_step - 300) <= 10


def test_a_gang_that_is_slower_as_a_whole_has_no_rank_named() -> None:
    found = play(Trace(slow_from=300, steps=500, ratio=1.4, all_slow=True), 4)
    assert found.named == ()
    assert len(found.slowed) == 1


APART = {
    "replicas": ApartTrace(noise=0.002),
    "noisy replicas": ApartTrace(noise=0.05, apart=0.01, drift=0.01),
    "a sweep": ApartTrace(noise=0.03, apart=0.3),
    "data preparation": ApartTrace(noise=0.15, apart=0.05, drift=0.1),
}


@pytest.mark.parametrize("kind", APART)
@pytest.mark.parametrize("tells", ["own", "cpu", "nothing"])
@pytest.mark.parametrize(("ranks", "spread"), [(3, False), (8, True)])
def test_ranks_that_never_wait_for_each_other_are_not_named(
    kind: str, tells: str, ranks: int, spread: bool
) -> None:
    """SLOW-5"""
    trace = msgspec.structs.replace(APART[kind], tells=tells, ranks=ranks, spread=spread)
    named = [play_apart(trace, seed) for seed in (ranks, 100 + ranks)]
    assert named == [[], []]


def test_two_slow_ranks_of_a_noisy_gang_of_four_are_named_within_a_hundred_steps() -> None:
    trace = Trace(ranks=4, slow=(1, 2), slow_from=150, steps=260, ratio=1.25, noise=0.12)
    for seed in range(3):
        named = play(trace, seed).named
        assert {found.rank for _, found in named} == {1, 2}
        assert named[0][0] <= 150 + 100


def test_a_slowness_that_passed_is_named_again_only_when_it_lasts_longer() -> None:
    """SLOW-6: the first is named, because nothing tells it from a host that is slow."""
    judge, named = GangJudge(), list[int]()
    shards = {range(100, 160): 1, range(260, 330): 2, range(430, 600): 0}
    for step in range(5, 600, 5):
        slow = next((rank for steps, rank in shards.items() if step in steps), None)
        for rank in range(4):
            own = (1.3 if rank == slow else 1.0) * (1 + 0.01 * ((step // 5 + rank) % 3))
            judge.add_blocks(rank, [PaceBlock(step, 5, 1.35, own_seconds=own)], step, step, 60.0)
        named += [one.rank for one in judge.judge(step) if isinstance(one, SlowRank)]
    assert named == [1, 0]


def count_named(ranks: int, like: float, gangs: int) -> int:
    """Return in how many of these healthy gangs a rank is named. Each rank's time of its own has
    noise of 15 %, which lasts: `like` is how much of it is the same in the next block."""
    named = 0
    for seed in range(gangs):
        dice, judge, noise = random.Random(seed), GangJudge(), [0.0] * ranks
        found = list[Finding]()
        for number in range(1, 61):
            fresh = 0.15 * math.sqrt(1 - like * like)
            noise = [like * one + dice.gauss(0, fresh) for one in noise]
            owns = [math.exp(one) for one in noise]
            now = 5.0 * number
            for rank, own in enumerate(owns):
                block = PaceBlock(5 * number, 5, max(owns), own_seconds=own)
                judge.add_blocks(rank, [block], now, now, 60.0)
            found += judge.judge(now)
        named += any(isinstance(one, SlowRank) for one in found)
    return named


@pytest.mark.parametrize(("ranks", "like", "most"), [(2, 0.5, 9), (3, 0.8, 12)])
def test_noise_that_lasts_is_not_taken_for_a_slow_rank(ranks: int, like: float, most: int) -> None:
    """SLOW-1: what a busy host does to its rank comes and goes within some seconds, so four blocks
    that agree are no four witnesses."""
    assert count_named(ranks, like, 50) <= most
