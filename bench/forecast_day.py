"""A simulated day of a pool in which each job is told, once, when it should start.

The day is that of `bench.fleet_day`, decided by the real cycle. Every few minutes the jobs that wait and were
not told yet get a forecast from what the controller would know then: how long the last jobs took, how long
the last machines took to come, what runs and for how long it has run. Each forecast is kept beside the
start that followed.
"""

from __future__ import annotations

import math

import msgspec

from bench.fleet_day import CYCLE_SECONDS, Day, Rented, decide
from holdfast.core.fleet.breaker import wait_for_offer
from holdfast.core.fleet.snapshot import OfferTrouble
from holdfast.core.forecast.forecast import find_forecast, foretell_line
from holdfast.core.forecast.outlook import Forecast, Outlook, PoolOutlook, StartPace
from holdfast.core.forecast.spreads import Spread, foretell_left, spread_of
from holdfast.core.placement.types import Candidate, Capacity, RunningTask
from holdfast.core.states import HostState

LINE = 500
"""The jobs at the head of the queue that a forecast plans for, as the controller reads them."""
PACE_SECONDS = 900.0
MAX_TOLD = 200
"""The most jobs that one look tells, spread over the queue."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One forecast and the start that followed. All in seconds from when it was told."""

    at: float
    ahead: int
    expected: float
    earliest: float
    latest: float
    by: str
    started: float

    @property
    def error(self) -> float:
        """Return how far the expectation was off, as a part of the wait."""
        return abs(self.expected - self.started) / self.started

    @property
    def held(self) -> bool:
        """Return whether the interval held the start."""
        return self.earliest <= self.started <= self.latest


class ForecastDay(Day):
    """A day that tells its jobs when they should start, every `every` seconds."""

    def __init__(self, hosts: int, seed: int, every: float = 300.0) -> None:
        super().__init__(hosts, seed)
        self.every = every
        self.told: list[Told] = []
        self.silent = 0
        """Jobs for which there was no forecast."""
        self._open: dict[tuple[float, float], tuple[float, int, Forecast]] = {}
        self._seen: set[tuple[float, float]] = set()

    def tell(self, now: float) -> None:
        """Compare the forecasts of jobs that started, and tell those that were not told yet."""
        while self.starts:
            at, job = self.starts.popleft()
            found = self._open.pop(job, None)
            if found is not None and at > found[0]:
                self.told.append(_compare(*found, at))
        if now % self.every or not self.queue:
            return
        outlook = self.look(now)
        told = foretell_line(outlook)
        fresh = [(i, job) for i, job in enumerate(self.queue) if job not in self._seen]
        for i, job in fresh[:: max(1, len(fresh) // MAX_TOLD)]:
            forecast = find_forecast(outlook, told, _ask(job, now), i)
            if forecast is None:
                self.silent += 1
            else:
                self._open[job] = now, i, forecast
        self._seen.update(job for _, job in fresh)

    def look(self, now: float) -> Outlook:
        """Return what the controller would know now."""
        past = spread_of(self.took_seconds)
        hosts, running, ends = [], [], {}
        for host in self.hosts.values():
            silent = now - host.heard_at > 60.0
            if host.state is not HostState.ACTIVE or (silent and host.job is None):
                continue
            hosts.append(_room(host.host_id, free=int(host.job is None)))
            if host.job is not None:
                ran = now - (host.ends_at - host.job[1])
                running.append(_run(host, ran))
                ends[host.host_id] = foretell_left(ran, past, None, None, None)
        queue = list(self.queue)
        recent = sum(at > now - PACE_SECONDS for at, _ in self.recent)
        return Outlook(
            line=tuple(_ask(job, now) for job in queue[:LINE]),
            behind=max(0, len(queue) - LINE),
            hosts=tuple(hosts),
            running=tuple(running),
            ends=ends,
            span=past or Spread((600.0,)),
            pools=(self._look_at_pool(now),),
            pace=StartPace(starts=recent, seconds=min(now, PACE_SECONDS)),
        )

    def _look_at_pool(self, now: float) -> PoolOutlook:
        starting = [h for h in self.hosts.values() if h.state is HostState.SPAWNING]
        serving = [h for h in self.hosts.values() if h.state is HostState.ACTIVE]
        over = sum(h.state is HostState.ERROR for h in self.hosts.values())
        trouble = OfferTrouble(refusals=self.refusals, age_seconds=now - self.refused_at)
        failed = sum(bool(fault) for _, fault in self.outcomes)
        return PoolOutlook(
            name="day",
            host=_room("", free=1),
            starting=tuple(now - h.intent_at for h in starting),
            serving=len(serving),
            room=max(0, self.spec.max - (len(self.hosts) - over)),
            resumes_seconds=wait_for_offer("day", "one", trouble),
            cycle_seconds=CYCLE_SECONDS,
            jobs_per_host=self.spec.jobs_per_host,
            spawn=spread_of(self.spawn_seconds) or Spread((60.0, 120.0, 180.0)),
            failing=failed / len(self.outcomes) if self.outcomes else 0.0,
        )


def _compare(at: float, ahead: int, forecast: Forecast, started: float) -> Told:
    """Return the forecast beside the start. The day starts jobs at its cycles only, so the times of a
    forecast count up to the next of them."""
    latest = forecast.latest_seconds
    return Told(
        at=at,
        ahead=ahead,
        expected=_to_cycle(forecast.expected_seconds),
        earliest=_to_cycle(forecast.earliest_seconds),
        latest=math.inf if latest is None else _to_cycle(latest),
        by=forecast.by,
        started=started - at,
    )


def _to_cycle(seconds: float) -> float:
    return max(1, math.ceil(seconds / CYCLE_SECONDS - 1e-9)) * CYCLE_SECONDS


def _name(job: tuple[float, float]) -> str:
    return f"{job[0]:.3f}-{job[1]:.6f}"


def _ask(job: tuple[float, float], now: float) -> Candidate:
    return Candidate(
        job_id=_name(job),
        epoch=0,
        queue="gpu",
        priority=50,
        tasks=1,
        gpus=1,
        cpu_slots=0,
        memory_bytes=0,
        waited_seconds=now - job[0],
    )


def _room(host_id: str, *, free: int) -> Capacity:
    return Capacity(
        host_id=host_id,
        name=host_id,
        incarnation="",
        queues=frozenset(),
        free_cpu_slots=0,
        free_memory_bytes=0,
        free_devices=tuple(range(free)),
    )


def _run(host: Rented, ran: float) -> RunningTask:
    return RunningTask(
        job_id=host.host_id,
        host_id=host.host_id,
        priority=50,
        devices=1,
        cpu_slots=0,
        memory_bytes=0,
        ran_seconds=ran,
        queue="gpu",
    )


def decide_and_tell(day: Day, now: float) -> None:
    """Follow the cycle's decisions, and tell the jobs that wait."""
    decide(day, now)
    assert isinstance(day, ForecastDay)
    day.tell(now)
