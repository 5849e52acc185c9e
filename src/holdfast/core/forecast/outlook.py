"""The values of a forecast: what the queues, the hosts and the pools look like now, and its answer. Pure.

FORECAST-1  No forecast lies before the moment of its outlook, and its earliest time, its expectation and
            its latest time stand in this order.
FORECAST-2  A job is expected at once if and only if the planner starts it on the outlook as it is.
FORECAST-3  "It would start now if …" is said of a change only after the planner has started the changed job
            on the outlook, beside all jobs that come before it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.core.forecast.spreads import Spread
from holdfast.core.placement.types import Candidate, Capacity, QuotaLeft, RunningTask, Share


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change with which a job would start now, or a pool rent a host. what: a word for programs. message: a
    clause that follows "it would start now". hint: how to make it so. stops: running jobs that would be
    stopped for it first."""

    what: str
    message: str
    hint: str = ""
    stops: int = 0


class PoolOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """A pool, as far as it may bring hosts.

    host: the room of one new host, as its best offer has it; its id is replaced. starting: for each host on
    its way, the seconds since its intent. serving: number of hosts that serve. room: how many more it may
    rent. resumes_seconds: time until its pause for the provider, its breaker or its offer's back-off is over.
    cycle_seconds: time between two cycles. jobs_per_host, rent_after_seconds: as the pool's spec has them.
    spawn: how long hosts took from the intent to serving.
    failing: the share of spawns that fail, in 0…1. raises: the bounds with which it would rent one more now.
    """

    name: str
    host: Capacity
    starting: tuple[float, ...] = ()
    serving: int = 0
    room: int = 0
    resumes_seconds: float = 0.0
    cycle_seconds: float = 30.0
    jobs_per_host: float = 3.0
    rent_after_seconds: float | None = None
    spawn: Spread
    failing: float = 0.0
    raises: tuple[Change, ...] = ()


class StartPace(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs started within the last `seconds`, of all queues that share hosts."""

    starts: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Return starts in a second; 0 where none was seen."""
        return self.starts / self.seconds if self.seconds > 0 else 0.0


class JobArrival(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was queued `age_seconds` ago, and how long it runs: jobs like it come again."""

    age_seconds: float
    job: Candidate
    span: Spread


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot that admission would read now, and how long everything may take.

    line: the first queued jobs, in the order in which a plan is given them, those in queues without
    headroom too. later: jobs that become queued after so many seconds. behind: number of queued jobs that
    are not in `line`. floors: for each queue of which `line` shows only the head, the priority of the last
    job that is shown. running: tasks that hold room, with their limits and expectations in force. ends: how
    long each running job may still run. spans: how long each job of the line may run, by id; `span` for the
    others. pace: of the last starts. arrivals_per_second: of new jobs. headroom, quotas, shares,
    hold_back_seconds, lowest_preemptible: as for `plan_admission`.
    """

    line: tuple[Candidate, ...]
    later: tuple[tuple[float, Candidate], ...] = ()
    behind: int = 0
    floors: Mapping[str, int] = {}
    hosts: tuple[Capacity, ...]
    running: tuple[RunningTask, ...] = ()
    ends: Mapping[str, Spread] = {}
    spans: Mapping[str, Spread] = {}
    span: Spread
    pools: tuple[PoolOutlook, ...] = ()
    pace: StartPace = StartPace()
    arrivals: tuple[JobArrival, ...] = ()
    """Jobs that came within the last `arrivals_seconds`, of which some may come before jobs of the line."""
    arrivals_seconds: float = 0.0
    arrivals_per_second: float = 0.0
    headroom: Mapping[str, int] = {}
    quotas: Mapping[str, QuotaLeft] = {}
    shares: Mapping[str, Share] = {}
    hold_back_seconds: float | None = None
    lowest_preemptible: int | None = None


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """When a queued job is expected to start, in seconds from now.

    Four of five jobs start between the earliest and the latest. latest_seconds: None where the end of the
    interval is not known. by: "plan" (what runs was let end, and the jobs ahead of it were placed) or "pace"
    (the jobs ahead of it, at the pace of the last starts).
    """

    expected_seconds: float
    earliest_seconds: float
    latest_seconds: float | None
    by: str
