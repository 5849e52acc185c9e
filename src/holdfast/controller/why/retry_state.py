"""A job's place in its chain of attempts, as a value and as a sentence. Pure; the API, the CLI and
GraphQL all show the same one.

CHAIN-1  `of` is 1 + `max_retries` and nothing else; `attempt` counts the attempts that cost a
         retry, and the present one, and never exceeds it. Attempts that cost none (preempted, a
         lost host, a trip) are counted apart: "attempt 1 of 3 (started 4 times)".
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
    """Return the place of `job` in its chain under `policy`: the one in force, or the one under
    which an ended job ended.

    held: the kill switch that holds retries back now, or None. now: the database's time.
    """
    allowed = 0 if job.spec.interactive else policy.max_retries
    number, of = count_attempts(job, allowed), 1 + allowed
    next_at = job.retry_at if job.state is JobState.WAITING else None
    return RetryState(
        sentence=_say(job, number, of, next_at, held, now),
        attempt=number,
        of=of,
        retries_left=max(0, allowed - job.counted_retries),
        next_at=next_at,
        held=held if next_at is not None else None,
    )


def count_attempts(job: JobRecord, allowed: int) -> int:
    """Return the number of the job's present attempt, as its retries count attempts (CHAIN-1)."""
    charged = job.counted_retries
    number = max(charged, 1) if job.state in PENDING else charged + 1
    return min(number, job.attempts, 1 + allowed)


def count_retries(job: JobRecord, allowed: int) -> int:
    """Return how many retries the job made or will make. The failure that ended it is followed by
    none."""
    return min(job.counted_retries, allowed)


def _say(
    job: JobRecord, number: int, of: int, next_at: datetime | None, held: str | None, now: datetime
) -> str:
    if job.attempts == 0:
        if job.state.terminal:
            return "ended before its first attempt"
        allowed = f"up to {of} attempts" if of > 1 else "one attempt and no retries"
        return f"not started yet, {allowed}"
    where = f"attempt {number} of {of}"
    if job.attempts > number:
        where += f" (started {job.attempts} times)"
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
    causes = {attempt.number: attempt.cause for attempt in attempts}
    return tuple(
        ChainLink(
            **shared_fields(attempt, ChainLink),
            retry_cause=None if attempt.parent is None else causes.get(attempt.parent),
        )
        for attempt in sorted(attempts, key=lambda a: a.number)
    )


def policy_of_end(job: JobRecord, attempts: Sequence[AttemptRecord]) -> RetryPolicy | None:
    """Return the policy that decided an ended job's last attempt, None where none did."""
    if not job.state.terminal or not attempts:
        return None
    return max(attempts, key=lambda a: a.number).policy
