"""Simulated gangs for the judge of stragglers: synchronous ranks with noise, hiccups, evaluations, saves of
rank 0, a warm-up and clocks that differ; and, where it is wanted, one rank that becomes slow.

Each step ends for all ranks when the slowest is done. A rank's agent has a `PaceRing`, and syncs
every 5 s at a time of its own; so what the judge sees is what it would see of real hosts.
"""

from __future__ import annotations

import math
import random

import msgspec

from holdfast.core.stragglers.clock import HostClock
from holdfast.core.stragglers.judge import GangJudge
from holdfast.core.stragglers.ring import PaceRing
from holdfast.core.stragglers.values import Finding, GangSlowed, SlowRank


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A gang to simulate.

    noise: deviation of a rank's time of a step, as a share; drift: that of a part that lasts for
    about ten steps; silicon: that of a part that lasts for ever. hiccups: share of steps in which a rank takes three times as long.
    tells: "own" where the job measures its waits, "cpu" where only processor time is known,
    "nothing" where both say the same of all ranks. slow: ranks that take `ratio` of their time from `slow_from` on,
    until `slow_until`.
    all_slow: from `slow_from` on every rank takes `ratio` of its time.
    """

    ranks: int = 8
    steps: int = 3600
    step_seconds: float = 1.0
    noise: float = 0.05
    drift: float = 0.01
    silicon: float = 0.01
    hiccups: float = 0.005
    evaluate_every: int = 500
    save_every: int = 200
    warm_up: int = 20
    tells: str = "own"
    slow: tuple[int, ...] = ()
    slow_from: int = 400
    slow_until: int = 1 << 30
    ratio: float = 1.2
    all_slow: bool = False
    sync_seconds: float = 5.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the judge found out, and the step at which it did. seconds: the length of the trace."""

    named: tuple[tuple[int, SlowRank], ...] = ()
    slowed: tuple[tuple[int, GangSlowed], ...] = ()
    seconds: float = 0.0


def play(trace: Trace, seed: int) -> Outcome:
    """Simulate a gang, and judge it at every sync as the controller does."""
    dice = random.Random(seed)
    gauss = dice.gauss
    ranks = range(trace.ranks)
    rings, judge = [PaceRing() for _ in ranks], GangJudge()
    silicon = [math.exp(gauss(0, trace.silicon)) for _ in ranks]
    drift, waited, used = [0.0] * trace.ranks, [0.0] * trace.ranks, [0.0] * trace.ranks
    warm = [dice.uniform(0.5, 3.0) for _ in ranks]
    phase = [dice.uniform(0, trace.sync_seconds) for _ in ranks]
    next_sync = [100.0 + at for at in phase]
    clock = [dice.uniform(-5e4, 5e4) for _ in ranks]
    clocks = [HostClock() for _ in ranks]
    now, named, slowed = 100.0, list[tuple[int, SlowRank]](), list[tuple[int, GangSlowed]]()
    keep = 0.9
    fresh = trace.drift * math.sqrt(1 - keep * keep)
    for step in range(1, trace.steps + 1):
        owns = []
        evaluates = step % trace.evaluate_every == 0
        for rank in ranks:
            drift[rank] = keep * drift[rank] + gauss(0, fresh)
            own = trace.step_seconds * silicon[rank] * math.exp(gauss(0, trace.noise) + drift[rank])
            if step <= trace.warm_up:
                own *= 1 + warm[rank] * math.exp(-step / 4)
            if dice.random() < trace.hiccups:
                own *= 3
            if trace.slow_until > step >= trace.slow_from and (
                rank in trace.slow or trace.all_slow
            ):
                own *= trace.ratio
            if evaluates:
                own += trace.step_seconds * dice.uniform(25, 35)
            if rank == 0 and step % trace.save_every == 0:
                own += trace.step_seconds * 8
            owns.append(own)
        now += max(owns) + 0.02 * trace.step_seconds
        wall = max(owns) + 0.02 * trace.step_seconds
        for rank in ranks:
            waited[rank] += wall - owns[rank]
            used[rank] += owns[rank] if trace.tells != "nothing" else wall
            skip = evaluates and step % (2 * trace.evaluate_every) == 0
            at = now + abs(gauss(0, 0.002)) + clock[rank]
            told = waited[rank] if trace.tells == "own" else None
            if skip:
                rings[rank].skip()
            full = rings[rank].beat(at, step, told)
            if trace.tells != "own" and rings[rank].wants_cpu(at):
                rings[rank].read_cpu(at, used[rank])
            if full:
                rings[rank].end()
        for rank in ranks:
            if now < next_sync[rank]:
                continue
            next_sync[rank] = now + trace.sync_seconds
            blocks = rings[rank].take_blocks(now + clock[rank])
            trip = dice.uniform(0.001, 0.004)
            clocks[rank].note_sync(now + trip, now + clock[rank], 0.002)
            if not blocks:
                continue
            judge.add_blocks(rank, blocks, now + trip, *clocks[rank].translate(now + clock[rank]))
            for finding in judge.judge(now):
                _sort(finding, step, named, slowed)
    return Outcome(named=tuple(named), slowed=tuple(slowed), seconds=now - 100.0)


class ApartTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that never wait for each other, as those of a sweep, of replicas, or of data preparation.

    apart: how far their times of a step differ by design, noise: from step to step, and drift: for
    about ten steps, each as a share. tells: "cpu" where processor time is known, "own" where the job
    tells waits, which are 0, or "nothing". spread: each rank has a host, with a clock, of its own.
    """

    ranks: int = 3
    seconds: float = 200.0
    step_seconds: float = 0.5
    noise: float = 0.05
    apart: float = 0.0
    drift: float = 0.0
    tells: str = "cpu"
    spread: bool = False


def play_apart(trace: ApartTrace, seed: int) -> list[SlowRank]:
    """Simulate ranks that do not wait for each other, and return the ranks that the judge names."""
    dice, judge, named = random.Random(seed), GangJudge(), list[SlowRank]()
    ranks = range(trace.ranks)
    rings, keep = [PaceRing() for _ in ranks], 0.9
    pace = [trace.step_seconds * math.exp(dice.gauss(0, trace.apart)) for _ in ranks]
    at = [100 + dice.uniform(0, 2 * trace.step_seconds) for _ in ranks]
    steps, used, drift = [0] * trace.ranks, [0.0] * trace.ranks, [0.0] * trace.ranks
    clock = [dice.uniform(-5e4, 5e4) if trace.spread else 0.0 for _ in ranks]
    clocks = [HostClock() for _ in ranks]
    syncs = [105 + (dice.uniform(0, 5) if trace.spread else 0.0) for _ in ranks]
    while min(syncs) < 100 + trace.seconds:
        first = min(ranks, key=syncs.__getitem__)
        now, trip = syncs[first], dice.uniform(0.001, 0.004)
        for rank in [first] if trace.spread else ranks:
            while at[rank] <= now:
                drift[rank] = keep * drift[rank] + dice.gauss(
                    0, trace.drift * math.sqrt(1 - keep**2)
                )
                took = pace[rank] * math.exp(dice.gauss(0, trace.noise) + drift[rank])
                steps[rank], used[rank], at[rank] = (
                    steps[rank] + 1,
                    used[rank] + 0.9 * took,
                    at[rank] + took,
                )
                beat_at = at[rank] + clock[rank]
                waited = 0.0 if trace.tells == "own" else None
                full = rings[rank].beat(beat_at, steps[rank], waited)
                if trace.tells == "cpu" and rings[rank].wants_cpu(beat_at):
                    rings[rank].read_cpu(beat_at, used[rank])
                if full:
                    rings[rank].end()
            clocks[rank].note_sync(now + trip, now + clock[rank], 0.002)
            blocks, syncs[rank] = rings[rank].take_blocks(now + clock[rank]), now + 5.0
            if blocks:
                judge.add_blocks(
                    rank, blocks, now + trip, *clocks[rank].translate(now + clock[rank])
                )
        named += [found for found in judge.judge(now) if isinstance(found, SlowRank)]
    return named


def _sort(
    finding: Finding,
    step: int,
    named: list[tuple[int, SlowRank]],
    slowed: list[tuple[int, GangSlowed]],
) -> None:
    if isinstance(finding, SlowRank):
        named.append((step, finding))
    elif isinstance(finding, GangSlowed):
        slowed.append((step, finding))
