"""Moves, the changes that reports, requests and decisions make to the rows of jobs.

A store loads and locks the rows of the jobs concerned, calls the functions of this folder, and
writes what `Moves` gathered, in one transaction. Every edge goes through `core.transitions.step`.
`runs` holds starts and ends, `drains` the one way an attempt is stopped.

GANG-3   A task keeps its host until its end is confirmed; a drain is completed only then.
LATE-1   A good end of a task whose lease has lapsed is taken until the drain of that lapse is
         complete, as of a task that ended by itself during the drain. The completion waits one
         interval of syncs for it. Afterwards it is refused.
FENCE-1  Callers match (task, epoch, host, incarnation) before they call; no report's key is trusted
         here.
"""

from collections.abc import Iterable
from datetime import datetime

from holdfast.core.causes import Cause
from holdfast.core.endings.decide import Charges
from holdfast.core.endings.drain import Completion
from holdfast.core.states import AttemptEvent, AttemptState, JobEvent, JobState, Outcome, TaskEvent
from holdfast.core.transitions import ATTEMPT, JOB, TASK, step
from holdfast.moves.rows import AttemptChange, EndedWork, JobRow, LeaseEnd, NewEvent, TaskRow
from holdfast.moves.values import DrainNews, Seated

MAX_AVOIDED_HOSTS = 16
MAX_RUNTIME_SECONDS = 10 * 366 * 86_400.0
LIVE_JOB_STATES = (JobState.RESERVED, JobState.RUNNING, JobState.DRAINING)


class Moves:
    """The rows of some jobs, and the changes made to them in one transaction."""

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
        self.ended_work: list[EndedWork] = []
        self.opened: set[str] = set()
        self.drain_news: list[DrainNews] = []  # for listeners, after the commit
        self.seated: list[Seated] = []
        self.lease_ends: list[LeaseEnd] = []
        self.rewritten: dict[tuple[str, int], TaskRow] = {}

    def end_lease(self, task: TaskRow) -> None:
        """Note a lease's end for the ledger, before the task's row forgets its host."""
        if task.host_id is not None:
            told = None if task.facts is None else task.facts.tally
            end = LeaseEnd(
                job_id=task.job_id,
                rank=task.rank,
                started_at=task.started_at,
                ended_at=task.ended_at,
                tally=told,
            )
            self.lease_ends.append(end)

    def ranks(self, job: JobRow) -> list[TaskRow]:
        """Return the job's tasks, sorted by rank."""
        return [task for _, task in sorted(self.tasks[job.id].items())]

    def log(
        self, kind: str, job: JobRow, message: str, *, task: TaskRow | None = None, **data: object
    ) -> None:
        """Note an event of `job`, about one rank of it where `task` is given."""
        host = task.host_id if task is not None else self._only_host(job)
        # A member of a supervised job has an epoch of its own, and its events carry that one.
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
        if job.state.terminal and job.origin_run is not None and job.origin_node is not None:
            ended = EndedWork(run=job.origin_run, node=job.origin_node, ref=job.id)
            self.ended_work.append(ended)
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
        """Mark the whole row to be written, its host and epoch included."""
        self.rewritten[task.job_id, task.rank] = task
        self.changed_tasks[task.job_id, task.rank] = task

    def move_attempt(self, job: JobRow, before: JobState, event: AttemptEvent) -> AttemptChange:
        """Carry out one edge of the attempt's machine, from the job's state `before`."""
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


def leave_waiting(m: Moves, job: JobRow, reason: str) -> None:
    """Queue a job whose wait is over."""
    m.move_job(job, JobEvent.RELEASE, reason)
    job.wait_cause = job.wait_until = job.retry_at = None
    job.queued_at = m.now


def cancel_idle(m: Moves, job: JobRow, cause: Cause, reason: str) -> None:
    """Cancel a job that has no attempt."""
    m.move_job(job, JobEvent.CANCEL, reason)
    job.wait_cause = job.wait_until = job.retry_at = None
    job.outcome, job.cause, job.exit_code = Outcome.CANCELLED, cause, None
    job.ended_at = m.now
    m.log("job.cancelled", job, reason, cause=str(cause))


def end_attempt(m: Moves, job: JobRow, change: AttemptChange, completion: Completion) -> None:
    """Write an attempt's decision and its members into the rows of the attempt and the job."""
    decision = completion.decision
    beat = last_beat(m.ranks(job))
    if beat is not None:
        job.step, job.total, job.beat_at = beat.step, beat.total, beat.beat_at
    job.outcome, job.cause, job.exit_code = decision.outcome, decision.cause, decision.exit_code
    job.trigger_rank = completion.trigger_rank
    change.outcome, change.cause, change.rule = decision.outcome, decision.cause, decision.rule
    change.charged_to = None if decision.charged_to is None else str(decision.charged_to)
    change.policy = decision.policy
    change.exit_code, change.reason = decision.exit_code, decision.reason
    change.trigger_rank = completion.trigger_rank
    change.members, change.ended_at = completion.members, m.now
    change.step, change.total = (None, None) if beat is None else (beat.step, beat.total)
    if change.started_at is None and job.started_at is None:
        starts = [t.started_at for t in m.ranks(job) if t.started_at is not None]
        change.started_at = min(starts, default=None)


def last_beat(tasks: Iterable[TaskRow]) -> TaskRow | None:
    """Return the task whose beat is the newest, the lowest rank of equals."""
    beating = [t for t in tasks if t.beat_at is not None]
    return max(beating, key=lambda t: (t.beat_at, -t.rank), default=None)


def charges_of(job: JobRow) -> Charges:
    """Return the charges of the job so far."""
    return Charges(
        retries=job.retries_charged,
        watchdog=job.watchdog_charged,
        infra=job.infra_charged,
        best_step=job.best_step,
        no_progress=job.no_progress,
    )


def announce_success(m: Moves, job: JobRow) -> None:
    """Log that a retried job has succeeded, where its policy wants this event."""
    if job.was_retried and job.retry_events:
        m.log("job.retry_succeeded", job, job.reason, retry_count=job.retries_charged)


def clear(m: Moves, job: JobRow) -> None:
    """Drop the task rows of an attempt that is over; its `members` keep their ends."""
    for task in m.tasks[job.id].values():
        m.end_lease(task)
    m.cleared.add(job.id)
    m.tasks[job.id] = {}
    for changed in (m.changed_tasks, m.rewritten):
        for key in [k for k in changed if k[0] == job.id]:
            del changed[key]
