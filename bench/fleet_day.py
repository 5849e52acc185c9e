"""A simulated day of a pool, by a rule that says when to rent and when to give back.

Jobs of one GPU come by the hour of the day, with bursts; machines take minutes to start, some never
do; for forty minutes the provider has none, for ten the database is away, and machines die under
their work. Time is simulated, chance is seeded, so that a day is the same for every rule.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.core.fleet.actions import DrainHost, EndMachine, FailHost, FreeHost, Promote, Spawn
from holdfast.core.fleet.cycle import plan_fleet
from holdfast.core.fleet.instances import MachineState, Offer
from holdfast.core.fleet.pools import RENT_AFTER_SECONDS, PoolSpec
from holdfast.core.fleet.snapshot import (
    FleetHost,
    FleetSnapshot,
    OfferTrouble,
    PoolView,
    SpawnOutcome,
    Waiting,
)
from holdfast.core.states import HostState, InstanceState

MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC)
DAY_SECONDS = 86_400.0
CYCLE_SECONDS = 30.0
JOB_SECONDS = 600.0
DEAD_PER_HOUR = 1 / 2000
NEVER_STARTS = 0.03
NO_CAPACITY = (11_000.0, 13_400.0)
DATABASE_AWAY = (50_400.0, 51_000.0)
USD_PER_HOUR = 2.0


class Rented(msgspec.Struct, kw_only=True):
    """A machine of the day. ready_at infinite: it never starts. dies_at: it falls silent."""

    host_id: str
    state: HostState
    intent_at: float
    ready_at: float
    dies_at: float
    since: float
    idle_since: float = 0.0
    job: tuple[float, float] | None = None  # when it was queued, and how long it takes
    ends_at: float = math.inf
    heard_at: float = 0.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a day cost. Waits are from queued to started, in seconds."""

    jobs: int
    finished: int
    usd: float
    busy_usd: float
    mean_wait: float
    p95_wait: float
    peak_hosts: int
    spawned: int
    rerun: int


Rule = Callable[["Day", float], None]


class Day:
    """One pool, its queue and its provider."""

    def __init__(
        self,
        hosts: int,
        seed: int,
        jobs_per_host: float = 3.0,
        rent_after: float | None = RENT_AFTER_SECONDS,
    ) -> None:
        self.spec = PoolSpec(
            name="day",
            provider="simulated",
            max=hosts,
            jobs_per_host=jobs_per_host,
            rent_after_seconds=rent_after,
            offers=(Offer(name="one", gpus=1, usd_per_hour=USD_PER_HOUR),),
        )
        self.hosts: dict[str, Rented] = {}
        self.queue: deque[tuple[float, float]] = deque()
        self.outcomes: deque[tuple[float, str]] = deque(maxlen=50)
        self.spawn_seconds: deque[float] = deque(maxlen=50)  # of hosts that came to serve
        self.took_seconds: deque[float] = deque(maxlen=200)  # of jobs that finished
        self.starts: deque[tuple[float, tuple[float, float]]] = deque()
        self.recent: deque[tuple[float, tuple[float, float]]] = deque(maxlen=2000)
        self.refusals = 0
        self.refused_at = 0.0
        self._ends: list[tuple[float, str]] = []
        self._arrivals = random.Random(seed)
        self._chance = random.Random(seed + 1)
        self._next = 0
        self._waits: list[float] = []
        self._usd = self._busy = 0.0
        self._done = self._came = self._rerun = self._peak = 0

    def run(self, rule: Rule) -> Report:
        """Live through the day, cycle by cycle."""
        now = 0.0
        while now < DAY_SECONDS:
            self._arrive(now)
            self._move(now)
            if not DATABASE_AWAY[0] <= now < DATABASE_AWAY[1]:
                rule(self, now)
            paid = len(self.hosts)
            self._peak = max(self._peak, paid)
            hours = CYCLE_SECONDS / 3600 * USD_PER_HOUR
            self._usd += paid * hours
            self._busy += sum(h.job is not None for h in self.hosts.values()) * hours
            now += CYCLE_SECONDS
        waits = sorted(self._waits + [now - queued for queued, _ in self.queue])
        return Report(
            jobs=self._came,
            finished=self._done,
            usd=self._usd,
            busy_usd=self._busy,
            mean_wait=sum(waits) / max(1, len(waits)),
            p95_wait=waits[int(len(waits) * 0.95)] if waits else 0.0,
            peak_hosts=self._peak,
            spawned=self._next,
            rerun=self._rerun,
        )

    def spawn(self, count: int, now: float) -> None:
        """Ask the provider for machines."""
        if NO_CAPACITY[0] <= now < NO_CAPACITY[1]:
            self.refusals, self.refused_at = self.refusals + 1, now
            return
        self.refusals = 0
        for _ in range(count):
            self._next += 1
            start = now + self._chance.uniform(60, 240)
            never = self._chance.random() < NEVER_STARTS
            host = Rented(
                host_id=f"h{self._next}",
                state=HostState.SPAWNING,
                intent_at=now,
                since=now,
                ready_at=math.inf if never else start,
                dies_at=start + self._chance.expovariate(DEAD_PER_HOUR / 3600),
            )
            self.hosts[host.host_id] = host

    def end(self, host_id: str) -> None:
        """Give a machine back; its work, if any, runs again."""
        host = self.hosts.pop(host_id)
        if host.job is not None:
            self._rerun += 1
            self.queue.appendleft(host.job)

    def _arrive(self, now: float) -> None:
        hour = now / 3600
        wave = max(0.0, math.sin((hour - 7) / 12 * math.pi)) + 0.05
        burst = 4.0 if 9.0 <= hour < 9.2 or 20.0 <= hour < 20.1 else 1.0
        rate = self.spec.max / JOB_SECONDS * 0.6 * wave * burst
        quiet = 2.0 <= hour < 4.5
        expected = 0.0 if quiet else rate * CYCLE_SECONDS
        for _ in range(int(expected) + (self._arrivals.random() < expected % 1)):
            self._came += 1
            self.queue.append((now, self._arrivals.expovariate(1 / JOB_SECONDS)))

    def _move(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            at, host_id = heapq.heappop(self._ends)
            host = self.hosts.get(host_id)
            if host is not None and host.ends_at == at and host.dies_at > at:
                self.took_seconds.append(host.job[1] if host.job is not None else 0.0)
                host.job, host.ends_at, host.idle_since = None, math.inf, at
                self._done += 1
        for host in self.hosts.values():
            if host.state is HostState.SPAWNING and host.ready_at <= now:
                host.state, host.since, host.idle_since = HostState.ACTIVE, now, now
                self.outcomes.appendleft((now, ""))
                self.spawn_seconds.append(now - host.intent_at)
            if host.dies_at > now:
                host.heard_at = now
            if host.state is HostState.ACTIVE and host.job is None and self.queue:
                if host.dies_at <= now:
                    continue
                queued, takes = host.job = self.queue.popleft()
                self._waits.append(now - queued)
                self.starts.append((now, host.job))
                self.recent.append((now, host.job))
                host.ends_at = now + takes
                heapq.heappush(self._ends, (host.ends_at, host.host_id))

    def show(self, now: float) -> FleetSnapshot:
        """What the store would show the cycle."""
        view = PoolView(
            spec=self.spec,
            hosts=tuple(self._show_host(host, now) for host in self.hosts.values()),
            outcomes=tuple(
                SpawnOutcome(age_seconds=now - at, offer="one", fault=fault)
                for at, fault in self.outcomes
            ),
            trouble={
                "one": OfferTrouble(refusals=self.refusals, age_seconds=now - self.refused_at)
            },
        )
        ages = [now - queued for queued, _ in self.queue]
        parts = [[a for a in ages if self.spec.rents_alone(a) is late] for late in (True, False)]
        waiting = tuple(
            Waiting(
                queue="gpu",
                jobs=len(part),
                gpus=1,
                oldest_seconds=max(part),
                newest_seconds=min(part),
            )
            for part in parts
            if part
        )
        at = MIDNIGHT + timedelta(seconds=now)
        return FleetSnapshot(at=at, pools=(view,), waiting=waiting)

    def _show_host(self, host: Rented, now: float) -> FleetHost:
        came = host.state is not HostState.SPAWNING
        busy = host.job is not None
        return FleetHost(
            host_id=host.host_id,
            name=host.host_id,
            state=host.state,
            instance=InstanceState.MADE,
            offer="one",
            usd_per_hour=USD_PER_HOUR,
            ref=host.host_id,
            state_seconds=now - host.since,
            intent_seconds=now - host.intent_at,
            heartbeat_seconds=now - host.heard_at if came else None,
            idle_seconds=now - host.idle_since if came and not busy else None,
            leases=int(busy),
            draining_for_scale=host.state is HostState.DRAINING,
            machine=MachineState.RUNNING,
        )


def decide(day: Day, now: float) -> None:
    """Follow the cycle's real decisions."""
    (plan,) = plan_fleet(day.show(now))
    for action in plan.actions:
        if isinstance(action, Spawn):
            day.spawn(action.count, now)
        elif isinstance(action, FailHost):
            host = day.hosts[action.host_id]
            if host.state is HostState.SPAWNING:
                day.outcomes.appendleft((now, str(action.fault)))
            host.state = HostState.ERROR
        elif isinstance(action, DrainHost):
            day.hosts[action.host_id].state = HostState.DRAINING
        elif isinstance(action, EndMachine):
            if action.host_id in day.hosts:
                day.end(action.host_id)
        elif isinstance(action, Promote | FreeHost):
            pass  # there are no checks in this day, and a machine's end frees its work


def decide_naively(day: Day, now: float) -> None:
    """Rent one machine a waiting job, give each back as soon as it is idle, and leave the silent
    ones to be found by hand after an hour."""
    day.spawn(min(len(day.queue), day.spec.max - len(day.hosts)), now)
    for host in list(day.hosts.values()):
        lost = now - max(host.heard_at, host.intent_at) > 3600
        idle = host.state is HostState.ACTIVE and host.job is None and not day.queue
        if lost or idle:
            day.end(host.host_id)


def keep_all(day: Day, now: float) -> None:
    """Keep the whole pool rented all day; the silent ones are found by hand after an hour."""
    for host in list(day.hosts.values()):
        if now - max(host.heard_at, host.intent_at) > 3600:
            day.end(host.host_id)
    day.spawn(day.spec.max - len(day.hosts), now)
