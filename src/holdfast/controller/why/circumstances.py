"""What is known around one job: `reads` reads it, `explain` and the modules beside it explain it."""

import math
from datetime import datetime

import msgspec

from holdfast.core.arrays.records import ArrayRecord
from holdfast.core.endings.decide import Policy
from holdfast.core.fleet.records import PoolRecord
from holdfast.core.placement.possible import Size
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
from holdfast.core.settings.resolve import Value
from holdfast.core.settings.watch import WatchSettings
from holdfast.wire.api import JobLimits


class YoungJob(msgspec.Struct, frozen=True, kw_only=True):
    """A running job that may be preempted, or give back what its project borrowed, once it has run
    for `least_seconds`, in `left_seconds`. host_ids: where its tasks are."""

    job_id: str
    priority: int
    project: str
    preemptible: bool
    host_ids: frozenset[str]
    left_seconds: float
    least_seconds: float


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What is known around one job.

    place: how many jobs of its queue come before it. refusal: why the last admission passed it
    over. led: this replica runs the loops. policy: what decides its next failure. holders: every
    kill switch that is on, as `Settings.find_holders` lists them. quota_jobs, quota_gpus: the
    project's limits. share: its project's, where any project has one.
    reclaims: a job that borrows may be stopped for it. last_attempt: the newest, of
    a job that is reserved, waits to run again, or failed. victims: jobs being stopped so that this
    one can start. young: jobs less important or borrowing that have not run for long enough to be
    stopped for it, those with the least time left first. start_limit: the setting that limits its
    start, and its seconds. reservation_seconds: how long a host may take to answer a reservation.
    pools: those that serve its queue. sizes: of all hosts, and of those that pools may rent.
    silence_seconds: after so long without a word a host is given
    nothing.
    waits: the ends of other jobs that it waits for, the first of them. array: the one in which it
    waits for its turn.
    watch: what its tasks are watched by. limits: what stops it by the clock, and how long it should
    take.
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
    young: tuple[YoungJob, ...] = ()
    start_limit: tuple[str, float] | None = None
    reservation_seconds: float | None = None
    pools: tuple[PoolRecord, ...] = ()
    silence_seconds: float = math.inf
    sizes: tuple[Size, ...] = ()
    watch: WatchSettings | None = None
    limits: JobLimits | None = None
    waits: tuple[WaitRecord, ...] = ()
    array: ArrayRecord | None = None
