"""Where a job stands in its chain of attempts, as a value and as a sentence. Pure; every face shows
the same one.

CHAIN-1  `attempt` never exceeds `of`: an attempt that cost no retry (preempted, a lost host, a
         trip) raises both.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from holdfast.core.records import AttemptRecord, JobRecord
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import JobState
from holdfast.wire.api import ChainLink, RetryState

PENDING = (JobState.WAITING, JobState.QUEUED)


def make_retry_state(
    job: JobRecord, policy: RetryPolicy, *, held: str | None, now: datetime
) -> RetryState:
    """Say where `job` stands under `policy`: the one in force, or for a job that has ended the one
    it ended under.

    held: whose kill switch holds retries back now, or None. now: the database's time.
    """
    left = 0 if job.spec.interactive else max(0, policy.max_retries - count_charged(job))
    pending = (
        job.state in PENDING
    )  # its next attempt is granted already, and not part of what is left
    of = job.attempts + (1 if pending else 0) + left
    next_at = job.retry_at if job.state is JobState.WAITING else None
    waits = next_at is not None
    return RetryState(
        sentence=_say(job, of, next_at, held, now),
        attempt=job.attempts,
        of=of,
        retries_left=left,
        next_at=next_at,
        held=held if waits else None,
    )


def count_charged(job: JobRecord) -> int:
    """Failures charged to its retries. Of a gang each rank has its own count, and the one that
    failed most decides."""
    if job.tasks == 1:
        return job.retries_charged
    return max((charged.retries for charged in job.rank_charges.values()), default=0)


def _say(job: JobRecord, of: int, next_at: datetime | None, held: str | None, now: datetime) -> str:
    if job.attempts == 0:
        allowed = f"up to {of} attempts" if of > 1 else "one attempt and no retries"
        return (
            f"ended before its first attempt of {of}"
            if job.state.terminal
            else f"not started yet, {allowed}"
        )
    where = f"attempt {job.attempts} of {of}"
    if next_at is not None:
        due = next_at <= now
        if held is not None:
            return f"{where}, next when retries are no longer held by {held}" + (
                "" if due else f", and not before {say_time(next_at, now)}"
            )
        return f"{where}, next any moment" if due else f"{where}, next at {say_time(next_at, now)}"
    if job.wait_cause == "parked":
        return f"{where}, parked until `holdfast retry` lets it go on"
    if job.state in PENDING:
        return f"{where}, next as soon as it is admitted"
    return f"{where}, {job.state}"


def say_time(moment: datetime, now: datetime) -> str:
    """A stored time for people: the time of day, and the date where it is not today's. Both are the
    database's UTC."""
    return (
        f"{moment:%H:%M:%S} UTC"
        if moment.date() == now.date()
        else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    )


def make_chain(attempts: Sequence[AttemptRecord]) -> tuple[ChainLink, ...]:
    """The chain without its weight (members, policies), oldest first."""
    return tuple(
        ChainLink(
            number=a.number,
            parent=a.parent,
            retry_count=a.retry_count,
            outcome=None if a.outcome is None else str(a.outcome),
            cause=None if a.cause is None else str(a.cause),
            charged_to=a.charged_to,
            reason=a.reason,
            host=a.host,
            started_at=a.started_at,
            ended_at=a.ended_at,
            next_at=a.next_at,
        )
        for a in sorted(attempts, key=lambda a: a.number)
    )


def policy_of_end(job: JobRecord, attempts: Sequence[AttemptRecord]) -> RetryPolicy | None:
    """The policy an ended job's last attempt was decided by, where it was decided at all."""
    if not job.state.terminal or not attempts:
        return None
    return max(attempts, key=lambda a: a.number).policy
