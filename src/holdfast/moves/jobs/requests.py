"""The requests of people and loops about jobs: submit, cancel, retry, give a reservation up, lapse."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.core.arrays.arrays import IN_LINE
from holdfast.core.arrays.differences import say_differences
from holdfast.core.bundles.code import CodeRef
from holdfast.core.causes import Cause
from holdfast.core.facts import LAPSED, make_lost
from holdfast.core.lease import Spell, count_gaps, margin_seconds
from holdfast.core.placement.ranks import name_places
from holdfast.core.records import JobRecord, RankCharges
from holdfast.core.spec import JobSpec
from holdfast.core.states import (
    PARKED,
    AttemptEvent,
    JobEvent,
    JobState,
    Outcome,
    TaskEvent,
    TaskState,
)
from holdfast.core.transitions import JOB, sources
from holdfast.errors import Conflict, HoldfastError, NotFound, ValidationError
from holdfast.moves.jobs import drains, runs
from holdfast.moves.jobs.moves import Moves, cancel_idle, clear, leave_waiting
from holdfast.moves.rows import BACK_OFF, JobRow, TaskRow
from holdfast.moves.values import NewJob

SUBMITTED = "submitted"
WAITS_FOR_START = "waits for its start time"
DUE = "its time has come"
_encoder = msgspec.json.Encoder(order="deterministic")


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one request on several jobs, by id. jobs: the changed jobs as they are now.
    refused: why the others were not changed."""

    jobs: dict[str, JobRecord]
    refused: dict[str, HoldfastError]


def hash_spec(spec: JobSpec) -> str:
    """Return the SHA-256 of the spec, secrets included, with which a repeat is compared. What was
    resolved when it was submitted (the instant of a start, the commit of a branch, the state of a
    checkout) is left out, because a repeat resolves that anew. The idempotency key is left out,
    because a repeat is found by it, and because jobs that differ by it alone are alike."""
    code, starts = spec.code, spec.start_at
    if code is not None:
        code = CodeRef(url=code.url, ref=code.ref) if code.url and code.ref else code.bare
    asked = msgspec.structs.replace(
        spec, code=code, start_at=None if starts is None else 0.0, idempotency_key=None
    )
    return hashlib.sha256(_encoder.encode(asked)).hexdigest()


def list_secrets(job: NewJob) -> dict[str, str]:
    """Return the secrets of a new job: the user's own, and over them the secrets that Holdfast made
    for the job."""
    return {**job.spec.secrets, **job.minted}


def refuse_mismatch(
    job_id: str,
    before: Any,
    after: Any,
    key: str | None = None,
    *,
    what: str = "job",
    otherwise: str = "secrets",
) -> Conflict:
    """Return the error for a key or an id that names another spec, with the fields that differ.
    otherwise: the name of the difference where no field differs."""
    differing = say_differences(before, after) or otherwise
    named = (
        f"{what} {job_id} is there already"
        if key is None
        else (f"idempotency key {key!r} named {what} {job_id}")
    )
    return Conflict(
        f"{named}, and this one differs from it in {differing}; use a new "
        f"{'id' if key is None else 'key'} for a new {what}",
        code="idempotency_mismatch",
    )


def refuse_queue(name: str) -> ValidationError:
    """Return the error for a queue that does not exist."""
    text = f"there is no queue {name!r}; `holdfast queues` lists them"
    return ValidationError(text, code="unknown_queue", field="queue")


def no_array(array_id: str) -> NotFound:
    """Return the error for an unknown array."""
    return NotFound(f"there is no array {array_id}; `holdfast jobs` lists them")


def no_job(job_id: str) -> NotFound:
    """Return the error for an unknown job."""
    return NotFound(f"there is no job {job_id}; `holdfast jobs` lists them")


def check_revivable(job_id: str, state: JobState, wait_cause: str | None) -> None:
    """Raise Conflict unless a person's `retry` is possible."""
    if state is JobState.WAITING and wait_cause in (PARKED, BACK_OFF):
        return
    if state not in sources(JOB, JobEvent.REVIVE):
        raise refuse_retry(job_id, state)


def refuse_retry(job_id: str, state: JobState) -> Conflict:
    """Return the error for a `retry` of a job that goes on by itself."""
    may = "only one that failed, was cancelled, is parked or backs off can be retried"
    return Conflict(f"job {job_id} is {state}; {may}")


def cancel(m: Moves, job: JobRow, reason: str, *, hard: bool) -> None:
    """Cancel a job in any state; one that has ended is left as it is."""
    if job.state.terminal:
        return
    if job.state in (JobState.WAITING, JobState.QUEUED):
        cancel_idle(m, job, Cause.USER_CANCELLED, reason)
        return
    if job.state is JobState.DRAINING:
        if job.drain_cause is Cause.USER_CANCELLED and (job.drain_hard or not hard):
            return
        job.drain_cause, job.drain_reason = Cause.USER_CANCELLED, reason
        job.drain_notice_seconds = None
        job.drain_hard = job.drain_hard or hard
        m.touch(job, reason)
        m.log("job.draining", job, reason, cause=str(Cause.USER_CANCELLED), hard=hard or None)
        return
    tasks = m.tasks[job.id].values()
    if job.state is JobState.RESERVED and all(t.offered_at is None for t in tasks):
        _cancel_unoffered(m, job, reason)
        return
    drains.begin_drain(m, job, Cause.USER_CANCELLED, reason, hard=hard)


def _cancel_unoffered(m: Moves, job: JobRow, reason: str) -> None:
    """Cancel a job that no host knows of, so nothing has to be stopped."""
    _give_up(m, job, Outcome.CANCELLED, Cause.USER_CANCELLED, reason)
    cancel_idle(m, job, Cause.USER_CANCELLED, reason)


def expire(m: Moves, job: JobRow, reason: str) -> None:
    """Give up a reservation that no host was ordered to run in time. The job returns to its old
    place in the queue at no charge; its attempt number is not used again."""
    _give_up(m, job, Outcome.EXPIRED, None, reason)
    m.log("job.expired", job, reason)


def _give_up(m: Moves, job: JobRow, outcome: Outcome, cause: Cause | None, reason: str) -> None:
    change = m.move_attempt(job, job.state, AttemptEvent.END)
    change.outcome, change.cause, change.reason = outcome, cause, reason
    change.ended_at = m.now
    for task in m.ranks(job):
        m.move_task(task, TaskEvent.RELEASE)
    clear(m, job)
    m.move_job(job, JobEvent.EXPIRE, reason)


def expire_start(m: Moves, job: JobRow, reservation_seconds: float) -> bool:
    """Give up a reservation of which some hosts did not confirm their places in time; return
    whether there was one."""
    tasks = m.ranks(job)
    asked = [t for t in tasks if t.state is TaskState.RESERVED and not t.replaced]
    missing = [t for t in asked if t.offered_at is None or (t.claimed_at is None and not t.barrier)]
    if job.state is not JobState.RESERVED or not missing:
        return False
    if all(t.offered_at is None for t in tasks):
        expire(m, job, expired_reason(reservation_seconds))
    else:
        run_out(m, job, run_out_reason(reservation_seconds, missing), missing[0])
    return True


def run_out(m: Moves, job: JobRow, reason: str, missing: TaskRow) -> None:
    """Give up a reservation of which only some hosts confirmed their places, by a drain, so that
    all places end together. missing: the rank that was waited for."""
    drains.begin_drain(m, job, Cause.START_TIMEOUT, reason, trigger=missing)


def revive(m: Moves, job: JobRow, reason: str, *, made: int | None) -> None:
    """Queue a job again at the back for a person's `retry`. The caller has checked the state.

    A member of an array that runs only so many at once waits for its turn.

    A job that backs off goes on at once, in its old place and with its budgets as they are, because
    its failure was charged when the back-off began.

    made: None gives the job all its budgets and hosts again. A number makes the retry count as one:
    it is the number of retries charged before the last attempt, so that a failure that was charged
    already is not charged twice. In a gang, the rank that began the fall is charged (GANG-4).
    """
    waited, backed_off = job.state is JobState.WAITING, job.wait_cause == BACK_OFF
    if job.array_limited and not backed_off:  # else it has its turn already (ARRAY-1)
        if waited:
            m.touch(job, reason)
        else:
            m.move_job(job, JobEvent.LINE_UP, reason)
        job.wait_cause, job.wait_until, job.retry_at = IN_LINE, None, None
    else:
        if waited:
            leave_waiting(m, job, reason)
        else:
            m.move_job(job, JobEvent.REVIVE, reason)
        job.wait_cause = job.wait_until = job.retry_at = None
    job.start_failures = job.infra_in_row = 0
    if not backed_off:  # else it has its charge and keeps its place
        _charge_revival(job, made)
        job.to_place = "back"
    job.ended_at, job.queued_at, job.trigger_rank = None, m.now, None
    kind = "job.released" if waited else "job.revived"
    m.log(kind, job, reason, counted=made is not None, retry_count=job.retries_charged)


def _charge_revival(job: JobRow, made: int | None) -> None:
    if made is None:
        job.retries_charged = job.watchdog_charged = job.infra_charged = job.no_progress = 0
        job.rank_charges, job.best_step, job.retry_events, job.avoid_hosts = {}, None, True, ()
    else:
        if job.tasks > 1 and job.trigger_rank is not None and job.retries_charged <= made:
            mine = job.rank_charges.get(str(job.trigger_rank), RankCharges())
            mine = msgspec.structs.replace(mine, retries=mine.retries + 1)
            job.rank_charges = {**job.rank_charges, str(job.trigger_rank): mine}
        job.retries_charged = made + 1


def lapse(
    m: Moves, leading_since: datetime, preempted: Mapping[str, str], spells: Sequence[Spell] = ()
) -> list[str]:
    """Free the loaded tasks whose lease ended more than its margin ago (LEASE-2), but not before a
    whole TTL after this leader began (LEASE-4). Return the ids of their jobs.

    preempted: ids of hosts that their providers take away → the provider's message. spells: as in
    `count_gaps`; the gaps since its last renewal count for no lease (LEASE-6).
    """
    lapsed = []
    for job in m.jobs.values():
        for task in m.ranks(job):
            if not task.state.holds_lease or task.lease_until is None:
                continue
            margin = timedelta(seconds=margin_seconds(task.lease_ttl_seconds))
            ttl = timedelta(seconds=task.lease_ttl_seconds)
            gaps = timedelta(seconds=count_gaps(spells, task.lease_until - ttl, m.now))
            if task.lease_until + margin + gaps < m.now and leading_since + ttl < m.now:
                said = preempted.get(task.host_id or "")
                lost = LAPSED if said is None else make_lost("host_preempted", said)
                runs.lose_task(m, job, task, lost)
                lapsed.append(job.id)
    return list(dict.fromkeys(lapsed))


def expired_reason(reservation_seconds: float) -> str:
    """Return the sentence that tells of a reservation that ran out."""
    late = f"its host did not ask for work within {reservation_seconds:g} s"
    return f"{late}; queued again at its old place"


def run_out_reason(reservation_seconds: float, missing: Sequence[TaskRow]) -> str:
    """Return the sentence that tells of a reservation in which the `missing` places were not kept."""
    whose = name_places((task.rank, task.host_name) for task in missing)
    return f"the places of {whose} were not claimed within {reservation_seconds:g} s"
