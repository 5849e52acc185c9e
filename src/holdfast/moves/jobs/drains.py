"""The moves of a drain, the one way an attempt is stopped: begun, forced, completed.

EVICT-1  A job whose place another one takes is told at once, and has its notice to save. It goes
          as soon as it has; what still runs when the notice is over is killed. The notice is on
          record with the drain, so that it outlives the controller that gave it.
"""

from datetime import timedelta

from holdfast.core.causes import Cause
from holdfast.core.endings.decide import Decision
from holdfast.core.endings.drain import Completion
from holdfast.core.states import PARKED, AttemptEvent, JobEvent, JobState, TaskEvent, TaskState
from holdfast.moves.jobs.moves import MAX_AVOIDED_HOSTS, Moves, announce_success, clear, end_attempt
from holdfast.moves.rows import BACK_OFF, RETRIES_HELD, JobRow, TaskRow
from holdfast.moves.values import DrainBegun


def begin_drain(
    m: Moves,
    job: JobRow,
    cause: Cause,
    reason: str,
    *,
    trigger: TaskRow | None = None,
    hard: bool = False,
    operator_stop: bool = False,
    notice_seconds: float | None = None,
) -> None:
    """Begin to stop the attempt. Tasks that no host was ordered to run count as ended at once.
    notice_seconds: the time that the tasks have to save; None: their grace."""
    m.move_attempt(job, job.state, AttemptEvent.DRAIN)
    m.move_job(job, JobEvent.DRAIN, reason)
    job.drain_cause, job.drain_reason, job.drain_since = cause, reason, m.now
    job.drain_hard, job.drain_operator_stop = hard, operator_stop
    job.drain_notice_seconds = notice_seconds
    job.trigger_rank = None if trigger is None else trigger.rank
    for task in m.ranks(job):
        if task.state not in (TaskState.RESERVED, TaskState.RUNNING):
            continue
        # Its host got no order, or only kept a place (a claim), so no process of it can run.
        idle = task.offered_at is None or (task.state is TaskState.RESERVED and not task.barrier)
        m.move_task(task, TaskEvent.PREEMPT)
        if idle:
            m.move_task(task, TaskEvent.CONFIRM)
    stopping = [task for task in m.ranks(job) if task.state is TaskState.PREEMPTING]
    m.drain_news.append(
        DrainBegun(
            job_id=job.id,
            attempt=job.attempts,
            epoch=job.epoch,
            cause=cause,
            trigger_rank=job.trigger_rank,
            host_id=None if trigger is None else trigger.host_id,
            stopping=len(stopping),
            hosts=tuple(sorted({task.host_id for task in stopping if task.host_id is not None})),
            reason=reason,
        )
    )
    about = {"cause": str(cause), "hard": hard or None, "notice_seconds": notice_seconds}
    m.log("job.draining", job, reason, task=trigger, **about)


def force_drain(m: Moves, job: JobRow) -> int:
    """Order a hard kill of the tasks that outlasted their grace, and return how many there are.
    Their devices stay reserved until their ends are confirmed (GANG-3)."""
    slow = [t for t in m.ranks(job) if t.state is TaskState.PREEMPTING]
    if job.drain_hard or not slow:
        return 0
    job.drain_hard = True
    m.touch(job, job.reason)
    for task in slow:
        text = f"rank {task.rank} has not confirmed its end in time; it is killed"
        m.log("task.force_drained", job, text, task=task)
    return len(slow)


def complete_drain(m: Moves, job: JobRow, completion: Completion) -> str | None:
    """Write the result of a drain; return the host to quarantine, if any. The caller has checked
    DRAIN-1."""
    decision, tasks = completion.decision, m.tasks[job.id]
    rank = name_suspect(job.trigger_rank, completion)
    trigger = tasks.get(rank) if rank is not None else None
    suspect = None if trigger is None else trigger.host_id
    change = m.move_attempt(job, job.state, AttemptEvent.END)
    end_attempt(m, job, change, completion)
    m.move_job(job, decision.event, decision.reason)
    made = job.retries_charged  # without the charge of a failure that no retry follows
    _charge(job, completion)
    job.avoid_hosts = list_avoided(job.avoid_hosts, suspect, decision)
    job.drain_cause = job.drain_reason = job.drain_since = job.drain_notice_seconds = None
    job.drain_hard = job.drain_operator_stop = False
    delay = None
    if decision.retry == "scheduled":
        job.retry_events = decision.announce
    if job.state is JobState.QUEUED:
        job.queued_at = change.next_at = m.now
    elif job.state is JobState.WAITING:
        delay = None if decision.parked else decision.delay_seconds
        _wait_for_retry(m, job, decision)
        change.next_at = job.retry_at
    else:
        job.ended_at = m.now
    if decision.front and job.ended_at is None:
        job.to_place = "front"
    kind = "job.requeued" if job.ended_at is None else f"job.{job.state}"
    m.log(
        kind,
        job,
        decision.reason,
        task=trigger,
        cause=decision.cause and str(decision.cause),
        rule=decision.rule,
        charged_to=decision.charged_to and str(decision.charged_to),
        exit_code=decision.exit_code,
        delay_seconds=delay,
        wait_cause=job.wait_cause,
    )
    if job.state is JobState.SUCCEEDED:
        announce_success(m, job)
    count = made if decision.retry == "exhausted" else job.retries_charged
    _announce_retry(m, job, decision, count)
    if job.state is JobState.WAITING and decision.held is not None:
        hold_retry(m, job, decision.held)
    job.epoch += 1
    clear(m, job)
    return suspect if decision.quarantine_host else None


def name_suspect(waited_for: int | None, completion: Completion) -> int | None:
    """Return the rank whose host is suspected: the trigger's, else `waited_for`, the rank whose
    host did not keep its place, because such a failed start has no failing task."""
    return waited_for if completion.trigger_rank is None else completion.trigger_rank


def list_avoided(
    before: tuple[str, ...], suspect: str | None, decision: Decision
) -> tuple[str, ...]:
    """Return the hosts that the job avoids after a decision, the last one at the end."""
    if not decision.avoid_host or suspect is None:
        return before
    return (*(host for host in before if host != suspect), suspect)[-MAX_AVOIDED_HOSTS:]


def _charge(job: JobRow, completion: Completion) -> None:
    totals, after = completion.totals, completion.decision.charges
    job.retries_charged, job.infra_charged = totals.retries, totals.infra
    job.watchdog_charged = totals.watchdog
    job.rank_charges, job.start_failures = dict(completion.rank_charges), after.start_failures
    job.infra_in_row = after.infra_in_row
    job.best_step, job.no_progress = after.best_step, after.no_progress


def _wait_for_retry(m: Moves, job: JobRow, decision: Decision) -> None:
    """Make the job wait for its due time, for a kill switch, or, if it is parked, for a person."""
    if decision.parked:
        job.wait_cause = PARKED
        return
    job.retry_at = m.now + timedelta(seconds=decision.delay_seconds)
    job.wait_cause = BACK_OFF if decision.held is None else RETRIES_HELD
    job.wait_until = job.retry_at if decision.held is None else None  # a kill switch has no end


def hold_retry(m: Moves, job: JobRow, held: str) -> None:
    """Log that a kill switch holds the job's retry, once for each time it is held."""
    due_at = job.retry_at or m.now
    m.log(
        "job.retry_held",
        job,
        job.reason,
        retry_count=job.retries_charged,
        cause=job.cause and str(job.cause),
        due_at=due_at.isoformat(),
        held_by=held,
    )


def _announce_retry(m: Moves, job: JobRow, decision: Decision, retry_count: int) -> None:
    """Write the events by which webhooks and people follow retries."""
    if decision.retry is None or not decision.announce:
        return
    cause = decision.cause and str(decision.cause)
    most = None if decision.policy is None else decision.policy.max_retries
    text, number, of = decision.reason, None, None
    if decision.retry == "scheduled" and most is not None:
        number, of = min(job.counted_retries, most) + 1, 1 + most  # CHAIN-1
        start = job.attempts + 1
        again = "" if start == number else f" (start {start})"
        text = f"{text}; attempt {number} of {of} is next{again}"
    m.log(
        f"job.retry_{decision.retry}",
        job,
        text,
        cause=cause,
        charged_to=str(decision.charged_to),
        retry_count=retry_count,
        max_retries=most,
        next_attempt=None if number is None else job.attempts + 1,
        of=of,
        due_at=job.retry_at and job.retry_at.isoformat(),
    )
