"""The facts around one job: `reads` reads them, `explain` and the modules beside it explain
them."""

import math
from datetime import datetime

import msgspec

from holdfast.core.arrays.records import ArrayRecord
from holdfast.core.endings.decide import Policy
from holdfast.core.fleet.records import PoolRecord
from holdfast.core.forecast.outlook import Change, Forecast
from holdfast.core.placement.possible import HostShape
from holdfast.core.placement.types import Share
from holdfast.core.records import (
    AttemptRecord,
    HostRecord,
    JobRecord,
    ProjectRecord,
    QueueRecord,
    TaskRecord,
    WaitRecord,
)
from holdfast.core.report.idle import IdleGpus, IdlePolicy
from holdfast.core.settings.resolve import Value
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.stragglers.records import SuspectRecord
from holdfast.wire.api import JobLimits
from holdfast.wire.forecasts.values import JobForecast


class YoungJob(msgspec.Struct, frozen=True, kw_only=True):
    """A running job that may be preempted, or give back what its project borrowed, once it has run
    for `least_seconds`. left_seconds: the time until then. host_ids: the hosts of its tasks."""

    job_id: str
    priority: int
    project: str
    preemptible: bool
    host_ids: frozenset[str]
    left_seconds: float
    least_seconds: float


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """A queued job's place in line and expected start. starts: how many of the last starts told the pace.
    changes: what would let it start now, each by itself. raises: what would have a pool rent a host for it
    now."""

    view: JobForecast
    forecast: Forecast | None
    changes: tuple[Change, ...] = ()
    raises: tuple[Change, ...] = ()
    starts: int = 0


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """The facts around one job.

    place: the number of jobs of its queue that come before it. refusal: why the last admission
    passed it over. led: True where this replica runs the loops. policy: the policy that decides its
    next failure. holders: every kill switch that is on, as `Settings.find_holders` lists them.
    quota_jobs, quota_gpus: the limits of its project. share: its project's share; None where no
    project has one. reclaims: True where a job that borrows may be stopped for it.

    last_attempt: its newest attempt, for a job that is reserved, waits to run again, or failed.
    victims: the jobs being stopped so that this one can start. winner: the job for which this one
    is being stopped. young: the jobs that may be stopped
    for it, but have not run for long enough yet, those with the least time left first. start_limit:
    the setting that limits its start, and the limit in seconds. reservation_seconds: how long a
    host may take to answer a reservation.

    pools: the pools that serve its queue. sizes: the sizes of all hosts, and of those that pools
    may rent. silence_seconds: the silence after which a host gets no more work. waits: the ends of
    other jobs that it waits for, the first ones only. array: the array in which it waits for its
    turn. watch: the watchdogs' settings for its tasks. limits: the limits that stop it by the
    clock, and how long it should take. environment: what the last attempt's log says of the age of
    an environment that was made long before. suspects: what is known of slow and wrong ranks of its
    present attempt. idle: what is known of its GPUs, where they did nothing at the last looks;
    idle_policy: what its project does about that.
    """

    job: JobRecord
    queue: QueueRecord | None
    tasks: tuple[TaskRecord, ...]
    hosts: tuple[HostRecord, ...]
    place: int
    now: datetime
    refusal: str | None = None
    max_running: Value = None
    led: bool = True
    policy: Policy = Policy()
    holders: tuple[tuple[str, str | None, str], ...] = ()
    rate_limit: Value = None
    project: ProjectRecord | None = None
    quota_jobs: Value = None
    quota_gpus: Value = None
    share: Share | None = None
    reclaims: bool = False
    last_attempt: AttemptRecord | None = None
    victims: tuple[JobRecord, ...] = ()
    winner: JobRecord | None = None
    young: tuple[YoungJob, ...] = ()
    start_limit: tuple[str, float] | None = None
    reservation_seconds: float | None = None
    pools: tuple[PoolRecord, ...] = ()
    silence_seconds: float = math.inf
    sizes: tuple[HostShape, ...] = ()
    watch: WatchSettings | None = None
    limits: JobLimits | None = None
    waits: tuple[WaitRecord, ...] = ()
    array: ArrayRecord | None = None
    environment: str | None = None

    foreseen: Foreseen | None = None
    suspects: tuple[SuspectRecord, ...] = ()
    idle: IdleGpus | None = None
    idle_policy: IdlePolicy = IdlePolicy()
