"""What is known around one job, for `why`. Read by `why_reads`, explained by `why` and its
siblings."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.core.endings.decide import Policy
from holdfast.core.records import (
    AttemptRecord,
    HostRecord,
    JobRecord,
    ProjectRecord,
    QueueRecord,
    TaskRecord,
)
from holdfast.core.settings.resolve import Value


class YoungJob(msgspec.Struct, frozen=True, kw_only=True):
    """A running job that may be preempted once it has run for `least_seconds`, in `left_seconds`.
    host_ids: where its tasks are."""

    job_id: str
    priority: int
    host_ids: frozenset[str]
    left_seconds: float
    least_seconds: float


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What is known around one job. `place`: how many of its queue stand before it. `refusal`:
    admission's last word.

    policy: what the next failure is decided by. holders: every kill switch thrown, as
    `Settings.find_holders` has them.
    project, quota_jobs, quota_gpus: who pays, what is in use, and what may be.
    last_attempt: the newest, while it matters: of a job that is reserved, waits to go on, or
    failed. victims: jobs that are being stopped so that this one can start. start_limit: the
    setting that limits its start, and its seconds.
    young: less important jobs that are too young yet to make room for it, the next to be old enough
    first.
    reservation_seconds: how long a host may take to answer a reservation.
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
    last_attempt: AttemptRecord | None = None
    victims: tuple[JobRecord, ...] = ()
    young: tuple[YoungJob, ...] = ()
    start_limit: tuple[str, float] | None = None
    reservation_seconds: float | None = None

    @property
    def reserved_at(self) -> datetime | None:
        """When its last attempt was reserved."""
        return None if self.last_attempt is None else self.last_attempt.reserved_at
