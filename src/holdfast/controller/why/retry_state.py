"""Where a job stands in its chain of attempts, as a value and as a sentence. Pure; the API, the CLI
and GraphQL all show the same one.

CHAIN-1  `attempt` never exceeds `of`: an attempt that cost no retry (preempted, a lost host, a
         trip) raises both.
"""

from collections.abc import Sequence
from datetime import datetime

from holdfast.controller.why.words import say_moment
from holdfast.core.records import AttemptRecord, JobRecord, shared_fields
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import JobState
from holdfast.wire.api import ChainLink, RetryState

PENDING = (JobState.WAITING, JobState.QUEUED)


def make_retry_state(
    job: JobRecord, policy: RetryPolicy, *, held: str | None, now: datetime
) -> RetryState:
    """Say where `job` stands under `policy`: the one in force, or the one an ended job ended under.

    held: which kill switch holds retries back now, or None. now: the database's time.
    """
    left = 0 if job.spec.interactive else max(0, policy.max_retries - job.counted_retries)
    # A pending attempt is granted already, and is not among the retries left.
    of = job.attempts + (1 if job.state in PENDING else 0) + left
    next_at = job.retry_at if job.state is JobState.WAITING else None
    return RetryState(
        sentence=_say(job, of, next_at, held, now),
        attempt=job.attempts,
        of=of,
        retries_left=left,
        next_at=next_at,
        held=held if next_at is not None else None,
    )


def _say(job: JobRecord, of: int, next_at: datetime | None, held: str | None, now: datetime) -> str:
    if job.attempts == 0:
        if job.state.terminal:
            return "ended before its first attempt"
        allowed = f"up to {of} attempts" if of > 1 else "one attempt and no retries"
        return f"not started yet, {allowed}"
    where = f"attempt {job.attempts} of {of}"
    if next_at is not None:
        due = next_at <= now
        if held is not None:
            earliest = "" if due else f", and not before {say_time(next_at, now)}"
            return f"{where}, next when retries are no longer held by {held}{earliest}"
        return f"{where}, next any moment" if due else f"{where}, next at {say_time(next_at, now)}"
    if job.wait_cause == "parked":
        return f"{where}, parked until `holdfast retry` lets it go on"
    if job.state in PENDING:
        return f"{where}, next as soon as it is admitted"
    return f"{where}, {job.state}"


def say_time(moment: datetime, now: datetime) -> str:
    """Return the time of day of a stored time, with the date where that is not today's in UTC."""
    return f"{moment:%H:%M:%S} UTC" if moment.date() == now.date() else say_moment(moment)


def make_chain(attempts: Sequence[AttemptRecord]) -> tuple[ChainLink, ...]:
    """Return the chain without its heavy parts (members, policies), oldest first."""
    return tuple(
        ChainLink(**shared_fields(attempt, ChainLink))
        for attempt in sorted(attempts, key=lambda a: a.number)
    )


def policy_of_end(job: JobRecord, attempts: Sequence[AttemptRecord]) -> RetryPolicy | None:
    """Return the policy that decided an ended job's last attempt, None where none did."""
    if not job.state.terminal or not attempts:
        return None
    return max(attempts, key=lambda a: a.number).policy
