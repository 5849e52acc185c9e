"""The acts that are counted, as values: each by itself, and bursts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from bench.counts import steps
from bench.counts.counts import ROUGH, Counts, add_up, pick_worst, tell_rises
from bench.counts.rig import SYNC_SECONDS, Rig
from bench.scale import say

TRIES = 6
ROUNDS, CROWDED, BURNERS = 5, 2, 8
USUAL_SYNC_SECONDS = 5.0
IDLE_SECONDS, FEWER_SECONDS = 60.0, 20.0
"""How long an idle controller is counted for the page, and by a test."""
IDLE_SLACK = 1.25
GANG_SLACK = 1.15
"""How many times the page's count what many hosts do may cost, because their calls fall together by chance."""
Step = Callable[[Rig], object]
ONE, TWO, MANY = {"host1": 1}, {"host2": 2}, {"host16": 16}


class Part(msgspec.Struct, frozen=True):
    """A step that is counted by itself, and how often the act has it. before, after: what is not
    counted."""

    do: Step
    weight: float = 1.0
    before: Step | None = None
    after: Step | None = None

    def count(self, rig: Rig) -> Counts:
        """Do it once."""
        if self.before is not None:
            self.before(rig)
            rig.settle()
        counts = rig.count(lambda: self.do(rig))
        if self.after is not None:
            self.after(rig)
            rig.settle()
        return counts


class Act(msgspec.Struct, frozen=True):
    """A thing whose cost is counted while nothing else is done. hosts: those it needs, with their
    slots. thin: it is one of the few that are counted with every run of the tests."""

    name: str
    parts: tuple[Part, ...]
    hosts: Mapping[str, int] = {}
    thin: bool = False
    slack: float = 1.0

    def count(self, rig: Rig) -> Counts:
        """Count each part until two counts of it are the same: two steps of a host may fall together
        by chance, or the work of a new minute into a look, but hardly twice in the same way. Where
        `TRIES` counts are all different, their highest."""
        rig.need_hosts(self.hosts)
        return add_up([(part.weight, self._count_part(rig, part)) for part in self.parts])

    def count_once(self, rig: Rig) -> Counts:
        """Count each part once."""
        rig.need_hosts(self.hosts)
        return add_up([(part.weight, part.count(rig)) for part in self.parts])

    def _count_part(self, rig: Rig, part: Part) -> Counts:
        found: list[Counts] = []
        for _ in range(TRIES):
            counts = part.count(rig)
            for one in found:
                if counts.equals(one):
                    return counts.take_least(one)
            if found:
                say(f"{self.name}: another count: {'; '.join(tell_rises(found[-1], counts))}")
            found.append(counts)
        return pick_worst(found)


class Idle(msgspec.Struct, frozen=True):
    """A second in which nothing is asked for: the mean of `IDLE_SECONDS`. before: what is done
    first. slack: the factor by which a shorter mean may exceed the page's count."""

    name: str
    hosts: Mapping[str, int] = {}
    before: Step | None = None
    thin: bool = False
    slack: float = IDLE_SLACK

    def count(self, rig: Rig) -> Counts:
        """Return the mean for the page."""
        return self._count(rig, IDLE_SECONDS)

    def count_once(self, rig: Rig) -> Counts:
        """Return the mean of fewer seconds."""
        return self._count(rig, FEWER_SECONDS)

    def _count(self, rig: Rig, seconds: float) -> Counts:
        rig.need_hosts(self.hosts)
        if self.before is not None:
            self.before(rig)
        return add_up([(1 / seconds, rig.count_seconds(seconds))])


class Burst(msgspec.Struct, frozen=True):
    """Many of a thing at once, counted for each of them. How they fall together is chance, so the
    count is a ceiling."""

    name: str
    part: Part
    units: int
    hosts: Mapping[str, int] = {}
    thin: bool = False
    slack: float = 1.0

    def count_once(self, rig: Rig) -> Counts:
        """Do it once. Neither what is rough is counted, nor each statement by its name."""
        rig.need_hosts(self.hosts)
        counts = add_up([(1 / self.units, self.part.count(rig))])
        return Counts({k: v for k, v in counts.columns.items() if k not in ROUGH})

    def count(self, rig: Rig) -> Counts:
        """Return the highest of each count in `ROUNDS` runs, some beside burners, as the tests may
        run: the fewer things fall together, the more each costs."""
        found = [self.count_once(rig) for _ in range(ROUNDS - CROWDED)]
        with burn(BURNERS):
            found += [self.count_once(rig) for _ in range(CROWDED)]
        return pick_worst(found)


@contextmanager
def burn(count: int) -> Iterator[None]:
    """Keep so many processes busy."""
    words = [sys.executable, "-S", "-c", "while True: pass"]
    burners = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def _look(low: float, high: float) -> Step:
    return lambda rig: rig.pass_time(low=low - 0.1, high=high + 0.1)


def _run_job(queue: str) -> tuple[Part, ...]:
    return (Part(lambda rig: steps.run_job(rig, queue)),)


def _run_many(queue: str) -> Step:
    return lambda rig: steps.run_many(rig, queue, 200)


_SYNC = _look(SYNC_SECONDS, SYNC_SECONDS)

ACTS = (
    Idle("an idle second, no host"),
    Idle("an idle second, one host", TWO, thin=True),
    Act(
        "an idle second's syncs of 100 hosts",
        (Part(steps.sync_in_turn, 1 / USUAL_SYNC_SECONDS, before=steps.join_hosts),),
    ),
    Act("a sync that says nothing new", (Part(_SYNC),), TWO, thin=True),
    Act("a submission of 1", (Part(lambda rig: steps.submit(rig, 1)),), thin=True),
    Act("a submission of 1,000", (Part(lambda rig: steps.submit(rig, 1000)),)),
    Act("a plain job, 2 slots", _run_job("host2"), TWO, thin=True),
    Act("a plain job, 1 slot", _run_job("host1"), ONE),
    Act("a plain job, 16 slots", _run_job("host16"), MANY),
    Act(
        "a gang of 8, started",
        (Part(steps.start_gang, before=steps.no_gang, after=steps.end_gang),),
        MANY,
        slack=GANG_SLACK,
    ),
    Act(
        "a gang of 8, failed",
        (Part(steps.fail_gang, before=steps.start_frail_gang),),
        MANY,
        slack=GANG_SLACK,
    ),
    Act(
        "a gang of 8, restarted",
        (Part(steps.restart_gang, before=steps.start_gang, after=steps.end_gang),),
        MANY,
        slack=GANG_SLACK,
    ),
    Act(
        "a gang of 8, ended",
        (Part(steps.end_gang, before=steps.start_gang),),
        MANY,
        slack=GANG_SLACK,
    ),
    Act("a batch of 100 calls", (Part(steps.map_calls, before=steps.warm_calls),), {"calls": 1}),
    Act("a page", (Part(steps.open_page),), TWO),
    Act("an exec", (Part(steps.run_exec, before=steps.hold_job, after=steps.let_job_go),), TWO),
)

BURSTS = (
    Burst("a plain job of 200, 2 slots", Part(_run_many("host2")), 200, TWO),
    Burst("a plain job of 200, 1 slot", Part(_run_many("host1")), 200, ONE),
    Burst("a plain job of 200, 16 slots", Part(_run_many("host16")), 200, MANY),
    Burst("a submission of 48 from 8 users", Part(steps.submit_at_once), 48),
    Burst(
        "a sync of 100 that say nothing new",
        Part(steps.sync_at_once, before=steps.join_hosts),
        steps.HOSTS,
    ),
)
