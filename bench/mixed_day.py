"""A simulated day of 64 GPUs with jobs of many sizes, priorities and lengths, in which each job that waits is
told, once, when it should start.

Admission is the real planner, with room held back for jobs that waited, at every arrival and every end. Jobs
have names, and jobs of one name take about as long; half of them have a time limit. Chance is seeded.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque

import msgspec

from bench.forecast_day import Told
from holdfast.core.forecast.forecast import find_forecast, foretell_line
from holdfast.core.forecast.outlook import Forecast, JobArrival, Outlook, StartPace
from holdfast.core.forecast.spreads import Spread, foretell_left, foretell_span, spread_of
from holdfast.core.forecast.world import World
from holdfast.core.placement.plan import AdmissionPlan, plan_admission
from holdfast.core.placement.types import Candidate, Capacity

HOSTS, GPUS = 8, 8
HOLD_BACK_SECONDS = 60.0
LOAD = 0.95
SIZES = ((1, 1, 0.7), (1, 2, 0.1), (1, 4, 0.08), (1, 8, 0.08), (2, 8, 0.04))
"""(tasks, GPUs of each, share of the jobs)."""
NAMES = 20
LINE = 500
ARRIVALS_SECONDS = 6 * 3600.0


class MixedDay:
    """One cluster, its queue and what was told. `hours`: how long the day is."""

    def __init__(self, seed: int, hours: float = 24.0, every: float = 900.0) -> None:
        self._chance = random.Random(seed)
        self._until, self._every = hours * 3600.0, every
        self.medians = [math.exp(self._chance.uniform(4.6, 8.2)) for _ in range(NAMES)]
        self.world = World(
            Outlook(line=(), hosts=tuple(map(_make_host, range(HOSTS))), span=Spread((1.0,)))
        )
        self.line: list[tuple[float, Candidate]] = []
        self.lengths: dict[str, float] = {}
        self.past: dict[str, deque[float]] = {}
        self.starts: deque[float] = deque(maxlen=500)
        self.told: list[Told] = []
        self._open: dict[str, tuple[float, int, Forecast]] = {}
        self._seen: set[str] = set()
        self._count = 0
        self._came: deque[tuple[float, Candidate]] = deque(maxlen=500)

    def run(self) -> list[Told]:
        """Live through the day, and return the forecasts beside the starts."""
        events: list[tuple[float, int, str]] = [(0.0, 0, "come"), (self._every, 1, "tell")]
        number = 2
        while events:
            at, _, what = heapq.heappop(events)
            if at > self._until:
                break
            if what == "come":
                self._come(at)
                events_at = at + self._chance.expovariate(self._find_rate())
                heapq.heappush(events, (events_at, number, "come"))
            elif what == "tell":
                heapq.heappush(events, (at + self._every, number, "tell"))
            else:
                live = self.world.end(what)
                self.past.setdefault(live.job.kin, deque(maxlen=10)).append(at - live.began_at)
            number += 1
            for job_id in self._admit(at):
                number += 1
                heapq.heappush(events, (at + self.lengths[job_id], number, job_id))
            if what == "tell":
                self._tell(at)
        return self.told

    def _find_rate(self) -> float:
        seconds = sum(self.medians) / NAMES * math.exp(0.08)  # the mean of their lengths
        gpus = sum(tasks * each * share for tasks, each, share in SIZES)
        return LOAD * HOSTS * GPUS / (gpus * seconds)

    def _come(self, at: float) -> None:
        chance = self._chance
        self._count += 1
        name = chance.randrange(NAMES)
        (tasks, gpus, _) = chance.choices(SIZES, [share for *_, share in SIZES])[0]
        job = Candidate(
            job_id=f"j{self._count}",
            epoch=0,
            queue="gpu",
            priority=80 if chance.random() < 0.1 else 50,
            tasks=tasks,
            gpus=gpus,
            cpu_slots=0,
            memory_bytes=0,
            kin=f"n{name}",
            time_limit_seconds=3.0 * self.medians[name] if chance.random() < 0.5 else None,
        )
        self.lengths[job.job_id] = self.medians[name] * chance.lognormvariate(0.0, 0.4)
        if job.time_limit_seconds is not None:
            self.lengths[job.job_id] = min(self.lengths[job.job_id], job.time_limit_seconds)
        self.line.append((at, job))
        self._came.append((at, job))
        self.line.sort(key=lambda item: (-item[1].priority, item[0]))

    def _show_line(self, at: float) -> list[Candidate]:
        return [
            msgspec.structs.replace(
                job, waited_seconds=at - since, expected_seconds=self._expect(job.kin)
            )
            for since, job in self.line[:LINE]
        ]

    def _expect(self, kin: str) -> float | None:
        past = self.past.get(kin)
        return max(past) if past else None

    def _admit(self, at: float) -> list[str]:
        jobs = self._show_line(at)
        plan = self._plan(jobs, at)
        found = {job.job_id: job for job in jobs}
        for placement in plan.placements:
            job = found[placement.job_id]
            self.world.start(job, placement, at, at + self.lengths[job.job_id])
            self.starts.append(at)
            told = self._open.pop(job.job_id, None)
            if told is not None:
                self.told.append(_compare(*told, at))
        gone = {placement.job_id for placement in plan.placements}
        self.line = [item for item in self.line if item[1].job_id not in gone]
        return sorted(gone)

    def _plan(self, jobs: list[Candidate], at: float) -> AdmissionPlan:
        room = self.world.list_room((0, 0, 0))
        plan = plan_admission(jobs, room, {}, hold_back_seconds=HOLD_BACK_SECONDS)
        if not plan.needs_running:
            return plan
        running = self.world.list_running(at)
        return plan_admission(jobs, room, {}, running=running, hold_back_seconds=HOLD_BACK_SECONDS)

    def _tell(self, at: float) -> None:
        """Tell the jobs that wait and were not told yet."""
        outlook = self._look(at)
        told = foretell_line(outlook)
        for ahead, job in enumerate(outlook.line):
            if job.job_id not in self._seen:
                self._seen.add(job.job_id)
                forecast = find_forecast(outlook, told, job, ahead)
                if forecast is not None:
                    self._open[job.job_id] = at, ahead, forecast

    def _look(self, at: float) -> Outlook:
        likes = {kin: spread_of(seconds) for kin, seconds in self.past.items()}
        every = spread_of([s for seconds in self.past.values() for s in seconds])
        line, running = self._show_line(at), self.world.list_running(at)
        return Outlook(
            line=tuple(line),
            hosts=tuple(self.world.list_room((0, 0, 0))),
            running=tuple(running),
            ends={
                job_id: foretell_left(
                    at - live.began_at,
                    likes.get(live.job.kin) or every,
                    live.job.time_limit_seconds,
                    None,
                    None,
                )
                for job_id, live in self.world.lives.items()
            },
            spans={
                job.job_id: foretell_span(
                    likes.get(job.kin) or every, job.time_limit_seconds, job.expected_seconds
                )
                for job in line
            },
            span=every or Spread((600.0,)),
            arrivals=tuple(
                JobArrival(
                    age_seconds=at - came,
                    job=msgspec.structs.replace(job, expected_seconds=self._expect(job.kin)),
                    span=foretell_span(
                        likes.get(job.kin) or every, job.time_limit_seconds, self._expect(job.kin)
                    ),
                )
                for came, job in self._came
                if came > at - ARRIVALS_SECONDS
            ),
            arrivals_seconds=min(at, ARRIVALS_SECONDS),
            pace=StartPace(starts=sum(s > at - 3600.0 for s in self.starts), seconds=3600.0),
            hold_back_seconds=HOLD_BACK_SECONDS,
        )


def _make_host(number: int) -> Capacity:
    return Capacity(
        host_id=f"h{number}",
        name=f"h{number}",
        incarnation="",
        queues=frozenset(),
        free_cpu_slots=0,
        free_memory_bytes=0,
        free_devices=tuple(range(GPUS)),
    )


def _compare(at: float, ahead: int, forecast: Forecast, started: float) -> Told:
    latest = forecast.latest_seconds
    return Told(
        at=at,
        ahead=ahead,
        expected=forecast.expected_seconds,
        earliest=forecast.earliest_seconds,
        latest=math.inf if latest is None else latest,
        by=forecast.by,
        started=max(1.0, started - at),
    )
