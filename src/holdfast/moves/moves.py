"""The moves both stores make: what one report, cancel or completion changes in a job, its tasks and
its attempt.

Pure over loaded rows. A store loads and locks the rows of the jobs concerned, calls these
functions, and writes what `Moves` gathered in the same transaction. Every edge goes through
`core.transitions.step`.

GANG-3   A task keeps its host until its end is confirmed; a drain is completed only then.
FENCE-1  Callers match (task, epoch, host, incarnation) before they call; nothing here trusts a
         report's key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from holdfast.core.causes import Cause
from holdfast.core.endings.decide import Charges, Decision, decide_success
from holdfast.core.endings.drain import Completion
from holdfast.core.endings.fallen import classify_fallen, name_rank
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.facts import TaskFacts
from holdfast.core.records import MemberRecord
from holdfast.core.states import (
    AttemptEvent,
    AttemptState,
    JobEvent,
    JobState,
    TaskEvent,
    TaskState,
)
from holdfast.core.transitions import ATTEMPT, JOB, TASK, step
from holdfast.moves.rows import (
    BACK_OFF,
    PARKED,
    RETRIES_HELD,
    AttemptChange,
    JobRow,
    NewEvent,
    TaskRow,
)
from holdfast.moves.values import DrainBegun, DrainNews, Seated, TaskPreempted

MAX_AVOIDED_HOSTS = 16
MAX_RUNTIME_SECONDS = 10 * 366 * 86_400.0
LIVE_JOB_STATES = (JobState.RESERVED, JobState.RUNNING, JobState.DRAINING)


class Moves:
    """The rows of some jobs, and what has been changed in them."""

    def __init__(self, now: datetime, jobs: Iterable[JobRow], tasks: Iterable[TaskRow]) -> None:
        self.now = now
        self.jobs = {job.id: job for job in jobs}
        self.tasks: dict[str, dict[int, TaskRow]] = {job_id: {} for job_id in self.jobs}
        for task in tasks:
            self.tasks[task.job_id][task.rank] = task
        self.changed_jobs: dict[str, JobRow] = {}
        self.changed_tasks: dict[tuple[str, int], TaskRow] = {}
        self.cleared: set[str] = set()
        self.attempts: dict[tuple[str, int], AttemptChange] = {}
        self.events: list[NewEvent] = []
        self.opened: set[str] = set()
        self.drain_news: list[DrainNews] = []  # told when all this is on record
        self.seated: list[Seated] = []
        self.rewritten: dict[tuple[str, int], TaskRow] = {}

    def ranks(self, job: JobRow) -> list[TaskRow]:
        """The job's tasks by rank."""
        return [task for _, task in sorted(self.tasks[job.id].items())]

    def log(
        self, kind: str, job: JobRow, message: str, *, task: TaskRow | None = None, **data: object
    ) -> None:
        """Note an event of `job`, about one rank of it where `task` is given."""
        host = task.host_id if task is not None else self._only_host(job)
        # A member of a supervised job has an epoch of its own: what happens to it is told under
        # that one.
        epoch = task.epoch if task is not None and kind.startswith("task.") else job.epoch
        self.events.append(
            NewEvent(
                kind=kind,
                job_id=job.id,
                attempt=job.attempts or None,
                epoch=epoch,
                rank=None if task is None else task.rank,
                host_id=host,
                queue=job.queue,
                project=job.project,
                message=message,
                data={k: v for k, v in data.items() if v is not None},
            )
        )

    def _only_host(self, job: JobRow) -> str | None:
        hosts = {task.host_id for task in self.tasks[job.id].values()}
        return hosts.pop() if len(hosts) == 1 else None

    def move_job(self, job: JobRow, event: JobEvent, reason: str) -> None:
        """Carry out one edge of the job's machine."""
        job.state = step(JOB, job.state, event)
        self.touch(job, reason)

    def touch(self, job: JobRow, reason: str) -> None:
        """Mark the job changed."""
        job.reason = reason
        job.revision += 1
        self.changed_jobs[job.id] = job

    def move_task(self, task: TaskRow, event: TaskEvent) -> None:
        """Carry out one edge of the task's machine."""
        task.state = step(TASK, task.state, event)
        if event in (TaskEvent.FINISH, TaskEvent.FAIL, TaskEvent.CONFIRM):
            task.ended_at = self.now
        self.changed_tasks[task.job_id, task.rank] = task

    def rewrite(self, task: TaskRow) -> None:
        """Have the whole row written, its place included, and not only what ordinary moves
        change."""
        self.rewritten[task.job_id, task.rank] = task
        self.changed_tasks[task.job_id, task.rank] = task

    def move_attempt(self, job: JobRow, before: JobState, event: AttemptEvent) -> AttemptChange:
        """Carry out one edge of the attempt's machine; its state follows from the job's before the
        move."""
        key = (job.id, job.attempts)
        change = self.attempts.get(key)
        state = AttemptState(before.value) if change is None else change.state
        after = step(ATTEMPT, state, event)
        if change is None:
            change = self.attempts[key] = AttemptChange(
                job_id=job.id, number=job.attempts, state=after
            )
        change.state = after
        return change


# ---- starts and ends


def start_task(m: Moves, job: JobRow, task: TaskRow) -> None:
    """Its agent reports a process. A task already started, or told to stop meanwhile, is left as it
    is."""
    if task.state is not TaskState.RESERVED:
        return
    m.move_task(task, TaskEvent.START)
    task.started_at = m.now
    task.offered_at = task.offered_at or m.now
    task.lease_until = max(
        task.lease_until or m.now, m.now + timedelta(seconds=task.lease_ttl_seconds)
    )
    if task.replaced:
        m.log("task.started", job, f"rank {task.rank} runs again, on {task.host_name}", task=task)
    start_job(m, job)


def start_job(m: Moves, job: JobRow) -> None:
    """A reserved job all of whose tasks have started runs. A member that is being replaced keeps
    nobody waiting."""
    tasks = m.tasks[job.id].values()
    ready = all(t.state in (TaskState.RUNNING, TaskState.DONE) or t.replaced for t in tasks)
    if job.state is JobState.RESERVED and ready:
        job.started_at = m.now
        m.move_attempt(job, job.state, AttemptEvent.START).started_at = m.now
        m.move_job(job, JobEvent.START, started_reason(job.attempts))
        m.log("job.started", job, job.reason)


def claim_task(m: Moves, job: JobRow, task: TaskRow, port: int) -> None:
    """Its host keeps a place for this rank of a gang. With the last one the start barrier opens for
    all (GANG-1).

    A claim that comes again, from an agent that was started anew, brings a new port, as long as
    nobody was told the old.
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
    """The sentence of a job that runs."""
    return f"attempt {attempt} runs"


def end_task(
    m: Moves, job: JobRow, task: TaskRow, facts: TaskFacts, rules: Sequence[OperatorRule]
) -> None:
    """Take the end that a task's agent reports. The caller has matched the key and that the task
    holds its lease.

    rules: the operators' own, by which a drain that begins here says its cause (CLASSIFY-4).
    """
    task.facts = facts
    if task.started_at is None and facts.start_error is None:
        task.started_at = guess_start(m.now, task.offered_at, facts.runtime_seconds)
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
    if facts.succeeded:
        m.move_task(task, TaskEvent.FINISH)
        tasks = m.tasks[job.id].values()
        if job.state is not JobState.DRAINING:
            if all(t.state is TaskState.DONE for t in tasks):
                _succeed(m, job)
            elif job.supervised and task.rank == 0:
                begin_drain(
                    m,
                    job,
                    Cause.SIBLING_DRAINED,
                    "the policy script has ended, and its host managers end with it",
                )
            else:
                start_job(
                    m, job
                )  # it may have been the last that was waited for: begun and over between two reports
    elif task.state is TaskState.PREEMPTING and facts.stopped and not facts.unkillable:
        _confirm_task(m, job, task)
    else:
        _fail_task(m, job, task, rules)
    # Reports of several ranks may come together; whose end was the first must still show (DRAIN-2).
    ago = timedelta(seconds=min(facts.ended_ago_seconds, MAX_RUNTIME_SECONDS))
    task.ended_at = max(m.now - ago, task.started_at or m.now)


def guess_start(now: datetime, offered_at: datetime | None, runtime_seconds: float) -> datetime:
    """When a task started that was never seen running: its end minus its run, and not before it was
    offered."""
    runtime = min(max(runtime_seconds, 0.0), MAX_RUNTIME_SECONDS)
    return max(offered_at or now, now - timedelta(seconds=runtime))


def lose_task(m: Moves, job: JobRow, task: TaskRow, lost: str) -> None:
    """Nothing more will be heard of a task: its lease lapsed, or there is evidence (LEASE-3)."""
    task.facts = TaskFacts(lost=lost)
    if task.state is TaskState.PREEMPTING:
        _confirm_task(m, job, task, lost)
    else:
        _fail_task(m, job, task, ())  # no operator's rule overrules a lost host (CLASSIFY-2)


def _confirm_task(m: Moves, job: JobRow, task: TaskRow, lost: str | None = None) -> None:
    """It was to stop, and has. lost: nothing of that was heard."""
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
        return  # MEMBER-1: what becomes of it is decided for itself (`moves.members`)
    found = classify_fallen(task.facts, rules, member=job.supervised and task.rank > 0)
    if job.tasks > 1:
        found = name_rank(found, task.rank, task.host_name)
    begin_drain(m, job, found.cause, found.message, trigger=task)


def charges_of(job: JobRow) -> Charges:
    """What the job's budgets have been charged."""
    return Charges(
        retries=job.retries_charged,
        watchdog=job.watchdog_charged,
        infra=job.infra_charged,
        best_step=job.best_step,
        no_progress=job.no_progress,
    )


def _succeed(m: Moves, job: JobRow) -> None:
    decision = decide_success(charges_of(job), job.attempts)
    ranks = m.ranks(job)
    started = [t.started_at for t in ranks if t.started_at is not None]
    change = m.move_attempt(job, job.state, AttemptEvent.END)
    if job.state is JobState.RESERVED:
        job.started_at = max(started, default=m.now)
        change.started_at = job.started_at
        m.log("job.started", job, started_reason(job.attempts))
    members = tuple(
        MemberRecord(rank=t.rank, host=t.host_name, state=t.state, exit_code=0, facts=t.facts)
        for t in ranks
    )
    completion = Completion(decision=decision, trigger_rank=None, members=members)
    _end_attempt(m, job, change, completion)
    m.move_job(job, JobEvent.SUCCEED, decision.reason)
    _end_job(m, job)
    m.log("job.succeeded", job, job.reason, exit_code=0)
    _announce_success(m, job)
    clear(m, job)


def _announce_success(m: Moves, job: JobRow) -> None:
    """A job that was charged a retry has succeeded; its policy said whether that is told when the
    retry was decided."""
    if job.retries_charged and job.retry_events:
        m.log("job.retry_succeeded", job, job.reason, retry_count=job.retries_charged)


# ---- drains


def begin_drain(
    m: Moves,
    job: JobRow,
    cause: Cause,
    reason: str,
    *,
    trigger: TaskRow | None = None,
    hard: bool = False,
    operator_stop: bool = False,
) -> None:
    """Start the one way an attempt is stopped. Tasks their hosts were never told of are confirmed
    at once."""
    m.move_attempt(job, job.state, AttemptEvent.DRAIN)
    m.move_job(job, JobEvent.DRAIN, reason)
    job.drain_cause, job.drain_reason, job.drain_since = cause, reason, m.now
    job.drain_hard, job.drain_operator_stop = hard, operator_stop
    job.trigger_rank = None if trigger is None else trigger.rank
    for task in m.ranks(job):
        if task.state not in (TaskState.RESERVED, TaskState.RUNNING):
            continue
        # Told of nothing, or of a claim only: nothing of it can run.
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
    m.log("job.draining", job, reason, task=trigger, cause=str(cause), hard=hard or None)


def force_drain(m: Moves, job: JobRow) -> int:
    """Grace is over for what has not confirmed its end: KILL. The devices stay held until the end
    is confirmed (GANG-3)."""
    slow = [t for t in m.ranks(job) if t.state is TaskState.PREEMPTING]
    if job.drain_hard or not slow:
        return 0
    job.drain_hard = True
    m.touch(job, job.reason)
    for task in slow:
        m.log(
            "task.force_drained",
            job,
            f"rank {task.rank} has not confirmed its end in time; it is killed",
            task=task,
        )
    return len(slow)


def complete_drain(m: Moves, job: JobRow, completion: Completion) -> str | None:
    """Write how a drain ended (DRAIN-1 is the caller's guard). Returns the id of the host to
    quarantine, if any."""
    decision, tasks = completion.decision, m.tasks[job.id]
    # A failed start has no failure of a task's own; the rank whose place was not kept in time is on
    # record.
    rank = job.trigger_rank if completion.trigger_rank is None else completion.trigger_rank
    trigger = tasks.get(rank) if rank is not None else None
    suspect = None if trigger is None else trigger.host_id
    change = m.move_attempt(job, job.state, AttemptEvent.END)
    _end_attempt(m, job, change, completion)
    m.move_job(job, decision.event, decision.reason)
    made = (
        job.retries_charged
    )  # retries made: the charge of a failure that no retry follows is not one of them
    _charge(job, completion)
    if decision.avoid_host and suspect is not None:
        kept = [h for h in job.avoid_hosts if h != suspect]
        job.avoid_hosts = (*kept, suspect)[-MAX_AVOIDED_HOSTS:]
    _leave_drain(job)
    delay = None
    if job.state is JobState.QUEUED:
        job.queued_at = change.next_at = m.now
    elif job.state is JobState.WAITING:
        delay = None if decision.parked else decision.delay_seconds
        _wait_for_retry(m, job, decision)
        change.next_at = job.retry_at
    else:
        _end_job(m, job)
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
        _announce_success(m, job)
    _announce_retry(
        m, job, decision, made if decision.retry == "exhausted" else job.retries_charged
    )
    if job.state is JobState.WAITING and decision.held is not None:
        hold_retry(m, job, decision.held)
    job.epoch += 1
    clear(m, job)
    return suspect if decision.quarantine_host else None


def _charge(job: JobRow, completion: Completion) -> None:
    totals, after = completion.totals, completion.decision.charges
    job.retries_charged, job.watchdog_charged, job.infra_charged = (
        totals.retries,
        totals.watchdog,
        totals.infra,
    )
    job.rank_charges, job.start_failures = dict(completion.rank_charges), after.start_failures
    job.best_step, job.no_progress = after.best_step, after.no_progress


def _wait_for_retry(m: Moves, job: JobRow, decision: Decision) -> None:
    """The row a back-off is: what is due when, or what a kill switch holds for as long as it is
    thrown. A parked job has
    no time at all: a person lets it go on."""
    if decision.parked:
        job.wait_cause = PARKED
        return
    job.retry_at = m.now + timedelta(seconds=decision.delay_seconds)
    job.wait_cause = BACK_OFF if decision.held is None else RETRIES_HELD
    job.wait_until = (
        job.retry_at if decision.held is None else None
    )  # the kill switch has no time of its own
    if decision.retry is not None:
        job.retry_events = decision.announce


def hold_retry(m: Moves, job: JobRow, held: str) -> None:
    """Tell that a kill switch holds the job's retry, once for each time it is held."""
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
    """The events webhooks and people follow retries by. A job that never asked for any has none of
    them."""
    if decision.retry is None or not decision.announce:
        return
    cause = decision.cause and str(decision.cause)
    m.log(
        f"job.retry_{decision.retry}",
        job,
        decision.reason,
        cause=cause,
        charged_to=str(decision.charged_to),
        retry_count=retry_count,
        max_retries=decision.policy and decision.policy.max_retries,
        due_at=job.retry_at and job.retry_at.isoformat(),
    )


def _end_attempt(m: Moves, job: JobRow, change: AttemptChange, completion: Completion) -> None:
    decision = completion.decision
    beat = last_beat(m.ranks(job))
    if beat is not None:
        job.step, job.total, job.beat_at = beat.step, beat.total, beat.beat_at
    job.outcome, job.cause, job.exit_code = decision.outcome, decision.cause, decision.exit_code
    job.trigger_rank = completion.trigger_rank
    change.outcome, change.cause, change.rule = decision.outcome, decision.cause, decision.rule
    change.charged_to = None if decision.charged_to is None else str(decision.charged_to)
    change.policy = decision.policy
    change.exit_code, change.reason, change.trigger_rank = (
        decision.exit_code,
        decision.reason,
        completion.trigger_rank,
    )
    change.members, change.ended_at = completion.members, m.now
    change.step, change.total = (None, None) if beat is None else (beat.step, beat.total)
    if change.started_at is None and job.started_at is None:
        starts = [t.started_at for t in m.ranks(job) if t.started_at is not None]
        change.started_at = min(starts, default=None)


def last_beat(tasks: Iterable[TaskRow]) -> TaskRow | None:
    """The task whose beat is the newest, the lowest rank of equals: what the job's progress
    shows."""
    beating = [t for t in tasks if t.beat_at is not None]
    return max(beating, key=lambda t: (t.beat_at, -t.rank), default=None)


def _leave_drain(job: JobRow) -> None:
    job.drain_cause = job.drain_reason = job.drain_since = None
    job.drain_hard = job.drain_operator_stop = False


def _end_job(m: Moves, job: JobRow) -> None:
    job.ended_at = m.now


def clear(m: Moves, job: JobRow) -> None:
    """The attempt is over: its task rows go, what they said is in the attempt's members."""
    m.cleared.add(job.id)
    m.tasks[job.id] = {}
    for changed in (m.changed_tasks, m.rewritten):
        for key in [k for k in changed if k[0] == job.id]:
            del changed[key]
