"""replay(outlook, scenario) → when each job of the line starts, if everything takes as long as in that
scenario. Pure.

Time goes from end to end: what ends gives its room back, hosts come, and `plan_admission`, the planner that
ships, places the line anew on the room that is then free. Ends that lie close together are one step, so
that the number of steps grows with the logarithm of the time that is replayed. `Effort` bounds the whole.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from holdfast.core.forecast.outlook import JobArrival, Outlook, PoolOutlook
from holdfast.core.forecast.spreads import Spread
from holdfast.core.forecast.world import World, gather_lives, part_of
from holdfast.core.placement.eligible import is_eligible
from holdfast.core.placement.plan import MAX_HOLDERS as MAX_HOLDERS_NOW
from holdfast.core.placement.plan import AdmissionPlan, plan_admission
from holdfast.core.placement.types import Candidate, Capacity, RunningTask

GRAIN_RATIO = 0.06
GRAIN_SECONDS = 0.5
DRAIN_SECONDS = 15.0
"""How long a job that makes room takes to stop."""
WINDOW = 32
"""The jobs at the head of the line that a step looks at first."""
HORIZON_SECONDS = 30 * 86_400.0
MAX_POOL_LINE = 100_000
SHARED_COST = 6
"""How many times as much a plan costs where projects have shares, or jobs may be preempted."""
MAX_HOLDERS = 2
"""Jobs for which a replayed plan of later holds room back; what more of them hold changes nothing much, and
costs as much again for each. The first plan holds room back as admission does now (FORECAST-2)."""


Event = Callable[[], bool]
"""Lets something happen at its moment, and returns whether that made room."""


class Effort:
    """Planning that is left to a forecast, in microseconds of a usual machine, by what plans look at."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, units: int) -> None:
        """Subtract the cost of a plan from the planning that is left."""
        self.left -= units


class _Pool:
    """A pool in one scenario."""

    def __init__(self, outlook: PoolOutlook, scenario: int) -> None:
        self.outlook = outlook
        self.scenario = scenario
        self.starting = 0
        self.serving = outlook.serving
        self.room = outlook.room
        self.asked = 0

    def draw(self, age: float) -> float:
        """Return the seconds after which a host that was asked for `age` seconds ago serves;
        infinity for a host that never does."""
        part = part_of(f"{self.outlook.name}/{self.asked}", self.scenario)
        fails = part_of(f"{self.outlook.name}!{self.asked}", self.scenario) < self.outlook.failing
        self.asked += 1
        times = self.outlook.spawn.seconds
        later = [each - age for each in times[bisect_right(times, age) :]]
        if fails:
            return math.inf
        if not later:
            return max(10.0, 0.25 * age) * (0.5 + part)
        return later[min(int(part * len(later)), len(later) - 1)]


class _Replay:
    """One scenario while it is replayed."""

    def __init__(self, outlook: Outlook, scenario: int, work: Effort) -> None:
        self.outlook, self.scenario, self.work = outlook, scenario, work
        self.world = World(outlook)
        self.line = list(outlook.line)
        self.at = 0.0
        self.started: dict[str, float] = {}
        self._events: list[tuple[float, int, Event]] = []
        self._count = 0
        self._ends: list[float] = []
        """When the events of this step made room, ascending."""
        self._plain = not outlook.shares and outlook.lowest_preemptible is None
        left = {job_id: s.draw(part_of(job_id, scenario)) for job_id, s in outlook.ends.items()}
        for live in gather_lives(outlook.running, left):
            self.world.lives[live.job.job_id] = live
            self._push(live.ends_at, partial(self._end, live.job.job_id))
        for at, job in outlook.later:
            self._push(at, partial(self._queue, job, front=False))
        self._likes: dict[str, Spread] = {}
        self._repeat_arrivals()
        self.pools = [_Pool(pool, scenario) for pool in outlook.pools]
        for pool in self.pools:
            for age in pool.outlook.starting:
                self._bring(pool, age)
            first = part_of(pool.outlook.name, scenario) * pool.outlook.cycle_seconds
            self._push(max(first, pool.outlook.resumes_seconds), partial(self._grow, pool))

    def _repeat_arrivals(self) -> None:
        """Let the jobs that came lately come again, over and over: each scenario begins the repetition at
        another moment. Jobs that come behind all of the line change nothing."""
        window = self.outlook.arrivals_seconds
        lowest = min((job.priority for job in self.line), default=0)
        if window <= 0:
            return
        phase = window * part_of("arrivals", self.scenario)
        for arrival in self.outlook.arrivals:
            if arrival.job.priority > lowest:
                at = (phase - arrival.age_seconds) % window
                self._push(at, partial(self._arrive, arrival, 0))

    def _arrive(self, arrival: JobArrival, times: int) -> bool:
        """Queue a job like one that came lately, and let it come again after the window."""
        job_id = f"{arrival.job.job_id}~{times}"
        job = msgspec.structs.replace(arrival.job, job_id=job_id, waited_seconds=-self.at)
        self._likes[job_id] = arrival.span
        again = self.at + self.outlook.arrivals_seconds
        self._push(again, partial(self._arrive, arrival, times + 1))
        return self._queue(job, front=False)

    def _push(self, at: float, event: Event) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, event))

    def _bring(self, pool: _Pool, age: float) -> None:
        """Let a host come that its pool asked for `age` seconds ago."""
        seconds = pool.draw(age)
        pool.starting += 1
        host_id = f"{pool.outlook.name}+{pool.asked}"
        host = msgspec.structs.replace(pool.outlook.host, host_id=host_id, name=host_id)
        self._push(self.at + seconds, partial(self._come, pool, host))

    def run(self, stop: str | None) -> Mapping[str, float]:
        """Go on until the job `stop` has started, or all of the line have, or the work is spent."""
        wanted = {job.job_id for job in self.line} | {job.job_id for _, job in self.outlook.later}
        while self.work.left > 0:
            self._plan()
            if stop in self.started or len(self.started) >= len(wanted):
                break
            if not self._events or not self._step():
                break
        return self.started

    def _step(self) -> bool:
        """Go to the next events. Returns False where none ever comes."""
        first = self._events[0][0]
        if not first < HORIZON_SECONDS:
            return False
        until = first + max(GRAIN_SECONDS, GRAIN_RATIO * first)
        self._ends = []
        while self._events and self._events[0][0] <= until:
            self.at, _, event = heapq.heappop(self._events)
            if event():
                self._ends.append(self.at)
            self.work.spend(2)
        return True

    def _end(self, key: str) -> bool:
        """End a running job, unless it ended before."""
        live = self.world.lives.get(key)
        if live is None or live.ends_at > self.at:
            return False
        self.world.end(key)
        if live.draining and live.told and not live.tasks[0].draining:
            self._queue(live.job, front=True)
        return True

    def _come(self, pool: _Pool, host: Capacity) -> bool:
        """Let a host of a pool serve from now on."""
        pool.starting -= 1
        pool.serving += 1
        self.world.add_host(host)
        return True

    def _queue(self, job: Candidate, *, front: bool) -> bool:
        """Put a job into the line: before or behind those of its priority."""
        keys = [-each.priority - (front and each.priority == job.priority) for each in self.line]
        at = bisect_right(keys, -job.priority - front)
        self.line.insert(at, job)
        return False

    def _grow(self, pool: _Pool) -> bool:
        """Let a pool rent what its cycle would for the jobs that wait (`core.fleet.demand`)."""
        self._push(self.at + pool.outlook.cycle_seconds, partial(self._grow, pool))
        look = pool.outlook
        if pool.room <= 0:
            return False
        worth = [(job, count_ranks(job, look)) for job in self.line]
        waiting = sum(count_worth(job, ranks) for job, ranks in worth)
        after = look.rent_after_seconds
        alone = 0.0  # hosts that jobs fill which have waited for long enough (DEMAND-5)
        if after is not None:
            late = [each for each in worth if each[1] and each[0].waited_seconds + self.at >= after]
            alone = sum(count_worth(job, n) if job.tasks > 1 else job.tasks / n for job, n in late)
        if waiting:
            new = self.outlook.behind + self.outlook.arrivals_per_second * self.at
            waiting += min(MAX_POOL_LINE, int(new))
        wanted = math.ceil(waiting / look.jobs_per_host - 1e-9)
        if alone:  # the hosts that serve are busy, else these jobs would be there
            wanted = max(wanted, pool.serving + math.ceil(alone - 1e-9))
        for _ in range(min(pool.room, wanted - pool.serving - pool.starting)):
            pool.room -= 1
            self._bring(pool, 0.0)
        self.work.spend(len(self.line) // 4)
        return False

    def _plan(self) -> None:
        """Place what fits now, as admission's rounds do."""
        limit = WINDOW if self._plain else len(self.line)
        while self.line and self.work.left > 0:
            window = self._show(limit)
            plan = self._ask(window)
            if plan is None:
                return
            placed = self._apply(window, plan)
            if plan.preemptions:
                self._stop([v for each in plan.preemptions for v in each.victims])
            # What fits of this window was placed, so only what stands behind it is left to look at.
            if limit >= len(self.line) + placed or not (plan.room_left or placed == len(window)):
                return
            limit *= 4

    def _show(self, limit: int) -> list[Candidate]:
        """Return the first jobs of the line, each with the time that it has waited until this
        moment."""
        hold_back = self.outlook.hold_back_seconds
        if hold_back is not None:
            for i, job in enumerate(self.line[:limit]):
                if job.waited_seconds < hold_back <= job.waited_seconds + self.at:
                    self.line[i] = msgspec.structs.replace(job, waited_seconds=hold_back)
        return self.line[:limit]

    def _ask(self, window: Sequence[Candidate]) -> AdmissionPlan | None:
        """Return the planner's plan; None where no host has room for the smallest job."""
        world = self.world
        least = (
            min(job.cpu_slots for job in window),
            min(job.memory_bytes for job in window),
            min(job.gpus for job in window),
        )
        hosts = world.list_room(least)
        self.work.spend(len(world.hosts) // 8)
        if not hosts and self._plain:
            return None
        dear = 1 if self._plain else SHARED_COST
        self.work.spend(dear * (60 + 2 * len(hosts) + 5 * len(window)))
        plan = self._call(window, hosts, None)
        if not plan.needs_running or (self._plain and not plan.placements):
            return plan
        running = world.list_running(self.at)
        placed = {each.job_id for each in plan.placements}
        most = MAX_HOLDERS if self.at > 0.0 else MAX_HOLDERS_NOW
        kept, holders = [], 0
        for job in window:
            holders += job.job_id not in placed
            if job.job_id in placed or holders <= most or not self._plain:
                kept.append(job)
        self.work.spend(dear * 3 * len(running) * (1 + min(holders, most)))
        return self._call(kept, world.list_room((-1, -1, -1)), running)

    def _call(
        self,
        jobs: Sequence[Candidate],
        hosts: Sequence[Capacity],
        running: Sequence[RunningTask] | None,
    ) -> AdmissionPlan:
        world, outlook = self.world, self.outlook
        return plan_admission(
            jobs,
            hosts,
            world.headroom,
            world.quotas,
            shares=world.shares,
            running=running,
            hold_back_seconds=outlook.hold_back_seconds,
            lowest_preemptible=outlook.lowest_preemptible,
        )

    def _apply(self, window: Sequence[Candidate], plan: AdmissionPlan) -> int:
        if not plan.placements:
            return 0
        jobs = {(job.job_id, job.member): job for job in window}
        gone = set()
        size, taken = sum(each.size for each in plan.placements), 0
        for placement in plan.placements:
            taken += placement.size
            at = self._find_moment(taken, size)
            seat = placement.tasks[0].rank if placement.member else None
            job = jobs[placement.job_id, seat]
            spread = self.outlook.spans.get(job.job_id) or self._likes.get(job.job_id)
            spread = spread or self.outlook.span
            ends = at + spread.draw(part_of(job.job_id, self.scenario))
            self.world.start(job, placement, at, ends)
            key = job.job_id if seat is None else f"{job.job_id}/{seat}"
            self._push(ends, partial(self._end, key))
            gone.add((job.job_id, seat))
            if seat is None and job.job_id not in self._likes:
                self.started.setdefault(job.job_id, at)
        self.line = [job for job in self.line if (job.job_id, job.member) not in gone]
        return len(gone)

    def _find_moment(self, taken: int, size: int) -> float:
        """Return when, within this step, the first `taken` of `size` ranks that start had room."""
        if not self._ends:
            return self.at
        return self._ends[max(0, -(-taken * len(self._ends) // size) - 1)]

    def _stop(self, victims: Sequence[str]) -> None:
        for victim in victims:
            live = self.world.lives.get(victim)
            if live is not None and not live.draining:
                live.draining = True
                live.ends_at = min(live.ends_at, self.at + DRAIN_SECONDS)
                self._push(live.ends_at, partial(self._end, victim))


def count_ranks(job: Candidate, pool: PoolOutlook) -> int:
    """Return how many tasks of a job one of the pool's hosts holds; 0 where it takes none."""
    host = pool.host
    if not is_eligible(host, job.queue, job.host_labels):
        return 0
    needs = (
        (job.gpus, len(host.free_devices)),
        (job.cpu_slots, host.free_cpu_slots),
        (job.memory_bytes, host.free_memory_bytes),
    )
    return max(0, min((have // want for want, have in needs if want), default=job.tasks))


def count_worth(job: Candidate, ranks: int) -> int:
    """Return as how many plain jobs a job counts for the size of a pool whose hosts hold so many of its
    tasks each."""
    return math.ceil(job.tasks / ranks) if ranks else 0


def replay(
    outlook: Outlook, scenario: int, work: Effort, stop: str | None = None
) -> Mapping[str, float]:
    """Return job id → the seconds after which it starts in this scenario, for those that start before the
    work is spent. stop: the job after whose start nothing more is of interest; None: all of the line."""
    return _Replay(outlook, scenario, work).run(stop)
