"""The moves of one task and of its job with it: it is claimed, starts, ends or is lost."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from holdfast.core.causes import Cause
from holdfast.core.endings.decide import decide_success
from holdfast.core.endings.drain import Completion
from holdfast.core.endings.fallen import classify_fallen, name_rank, name_silent
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.endings.trigger import find_silent
from holdfast.core.facts import LAPSED, TaskFacts
from holdfast.core.records import MemberRecord
from holdfast.core.states import AttemptEvent, JobEvent, JobState, TaskEvent, TaskState
from holdfast.moves.jobs import drains
from holdfast.moves.jobs.moves import (
    MAX_RUNTIME_SECONDS,
    Moves,
    announce_success,
    charges_of,
    clear,
    end_attempt,
)
from holdfast.moves.rows import JobRow, TaskRow
from holdfast.moves.values import TaskPreempted


def start_task(m: Moves, job: JobRow, task: TaskRow) -> None:
    """Record the start that a task's agent reports; ignore a repeat, and a task that is to stop."""
    if task.state is not TaskState.RESERVED:
        return
    m.move_task(task, TaskEvent.START)
    task.started_at = m.now
    task.offered_at = task.offered_at or m.now
    until = m.now + timedelta(seconds=task.lease_ttl_seconds)
    task.lease_until = max(task.lease_until or m.now, until)
    if task.replaced:
        m.log("task.started", job, f"rank {task.rank} runs again, on {task.host_name}", task=task)
    start_job(m, job)


def start_job(m: Moves, job: JobRow, at: datetime | None = None) -> None:
    """Move a reserved job to `running` once all its tasks have started or are being replaced.
    at: the time of its start, None: now."""
    tasks = m.tasks[job.id].values()
    ready = all(t.state in (TaskState.RUNNING, TaskState.DONE) or t.replaced for t in tasks)
    if job.state is JobState.RESERVED and ready:
        job.started_at = at or m.now
        m.move_attempt(job, job.state, AttemptEvent.START).started_at = job.started_at
        m.move_job(job, JobEvent.START, started_reason(job.attempts))
        m.log("job.started", job, job.reason)


def claim_task(m: Moves, job: JobRow, task: TaskRow, port: int) -> None:
    """Record that a host keeps a place for a rank of a gang; the last rank opens the start barrier
    for all (GANG-1).

    A claim that a restarted agent repeats may bring a new port until the barrier is open.
    """
    if task.state is not TaskState.RESERVED or task.barrier:
        return
    port_now = port or task.port
    if task.claimed_at is None or port_now != task.port:
        task.claimed_at, task.port = task.claimed_at or m.now, port_now
        m.changed_tasks[task.job_id, task.rank] = task
    ranks = m.tasks[job.id].values()
    if job.state is not JobState.RESERVED or any(t.claimed_at is None for t in ranks):
        return
    for other in ranks:
        other.barrier = True
        m.changed_tasks[other.job_id, other.rank] = other
        if other.host_id is not None:
            m.opened.add(other.host_id)
    m.log("job.claimed", job, f"all {len(ranks)} ranks have their places; they start together")


def started_reason(attempt: int) -> str:
    """Return the sentence that tells of a job that runs."""
    return f"attempt {attempt} runs"


def end_task(
    m: Moves, job: JobRow, task: TaskRow, facts: TaskFacts, rules: Sequence[OperatorRule]
) -> None:
    """Apply the end that a task's agent reports. The caller has matched its key and its lease.

    rules: the operators' rules, for the cause of a drain that begins here (CLASSIFY-4).
    """
    task.facts = facts
    if task.started_at is None and facts.start_error is None:
        task.started_at = guess_start(m.now, task.offered_at, facts.runtime_seconds)
    if job.tasks == 1 and not facts.succeeded:
        _start_late(m, job, task)
    if facts.trip is not None:
        trip = facts.trip
        m.log(
            "task.tripped",
            job,
            trip.reason,
            task=task,
            watchdog=str(trip.watchdog),
            exit_code=trip.exit_code,
            evidence=trip.evidence,
        )
    for sentence in facts.notices:
        m.log("task.notice", job, sentence, task=task)
    if facts.succeeded:
        m.move_task(task, TaskEvent.FINISH)
        tasks = m.tasks[job.id].values()
        if job.state is not JobState.DRAINING:
            if all(t.state is TaskState.DONE for t in tasks):
                _succeed(m, job)
            elif job.supervised and task.rank == 0:
                over = "the policy script has ended, and its host managers end with it"
                drains.begin_drain(m, job, Cause.SIBLING_DRAINED, over)
            else:
                start_job(m, job)  # it may have waited for this task, which is over already
    elif task.state is TaskState.PREEMPTING and facts.stopped and not facts.unkillable:
        _confirm_task(m, job, task)
    else:
        _fail_task(m, job, task, rules)
    # Reports of several ranks may come together, and the first end must still show (DRAIN-2).
    ago = timedelta(seconds=min(facts.ended_ago_seconds, MAX_RUNTIME_SECONDS))
    task.ended_at = max(m.now - ago, task.started_at or m.now)


def comes_late(m: Moves, job: JobRow, task: TaskRow, facts: TaskFacts) -> bool:
    """Return whether a reported end is a good one that comes after the task's lease lapsed, and
    before the drain of that lapse is complete (LATE-1). Then the task's row is still there, under
    the epoch, host and incarnation that the caller has matched.

    Where ranks on other hosts are stopped for the lapse, the whole gang has to run again, so such
    an end is refused: the rank would count as finished work, which may not run again (GANG-5).
    """
    others = [t for t in m.ranks(job) if t is not task] if job.state is JobState.DRAINING else []
    whole = all(t.state is TaskState.DONE or _is_lapsed(t) for t in others)
    return facts.succeeded and whole and _is_lapsed(task)


def _is_lapsed(task: TaskRow) -> bool:
    fell = task.state in (TaskState.FAILED, TaskState.PREEMPTED)
    return fell and task.facts is not None and task.facts.lost == LAPSED


def _start_late(m: Moves, job: JobRow, task: TaskRow) -> None:
    """Record the start of a job whose only task had ended before its start was reported, so that
    the history shows that it ran."""
    if task.state is not TaskState.RESERVED or task.started_at is None:
        return
    m.move_task(task, TaskEvent.START)
    start_job(m, job, task.started_at)


def guess_start(now: datetime, offered_at: datetime | None, runtime_seconds: float) -> datetime:
    """Return when a task started whose start was never reported: its run time ago, but not before
    its offer."""
    runtime = min(max(runtime_seconds, 0.0), MAX_RUNTIME_SECONDS)
    return max(offered_at or now, now - timedelta(seconds=runtime))


def lose_task(m: Moves, job: JobRow, task: TaskRow, lost: str) -> None:
    """End a task without a report: its lease lapsed, or there is evidence (LEASE-3)."""
    task.facts = TaskFacts(lost=lost)
    if task.state is TaskState.PREEMPTING:
        _confirm_task(m, job, task, lost)
    else:
        _fail_task(m, job, task, ())  # no operator's rule overrules a lost host (CLASSIFY-2)


def _confirm_task(m: Moves, job: JobRow, task: TaskRow, lost: str | None = None) -> None:
    """Record the confirmed end of a task that was ordered to stop. lost: why no report came."""
    m.move_task(task, TaskEvent.CONFIRM)
    about = TaskPreempted(
        job_id=job.id,
        attempt=job.attempts,
        epoch=job.epoch,
        rank=task.rank,
        host_id=task.host_id,
        lost=lost,
    )
    m.drain_news.append(about)


def _fail_task(m: Moves, job: JobRow, task: TaskRow, rules: Sequence[OperatorRule]) -> None:
    m.move_task(task, TaskEvent.FAIL)
    if job.state is JobState.DRAINING or task.facts is None:
        return
    if job.supervised and task.rank > 0 and task.barrier:
        return  # it is replaced by itself (MEMBER-1, `moves.jobs.members`)
    found = classify_fallen(task.facts, rules, member=job.supervised and task.rank > 0)
    if job.tasks > 1:
        silent = [] if job.supervised else find_silent(m.ranks(job), task)
        found = (
            name_silent(found, silent, job.tasks)
            if silent
            else name_rank(found, task.rank, task.host_name)
        )
    drains.begin_drain(m, job, found.cause, found.message, trigger=task)


def _succeed(m: Moves, job: JobRow) -> None:
    ranks = m.ranks(job)
    notices = [sentence for t in ranks if t.facts is not None for sentence in t.facts.notices]
    decision = decide_success(charges_of(job), job.attempts, notices)
    started = [t.started_at for t in ranks if t.started_at is not None]
    change = m.move_attempt(job, job.state, AttemptEvent.END)
    if job.state is JobState.RESERVED:
        job.started_at = max(started, default=m.now)
        change.started_at = job.started_at
        m.log("job.started", job, started_reason(job.attempts))
    members = [
        MemberRecord(rank=t.rank, host=t.host_name, state=t.state, exit_code=0, facts=t.facts)
        for t in ranks
    ]
    completion = Completion(decision=decision, trigger_rank=None, members=tuple(members))
    end_attempt(m, job, change, completion)
    m.move_job(job, JobEvent.SUCCEED, decision.reason)
    job.ended_at = m.now
    m.log("job.succeeded", job, job.reason, exit_code=0)
    announce_success(m, job)
    clear(m, job)
