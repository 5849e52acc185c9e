"""Jobs, their tasks and attempts in the model, where each submission is new and has no quota and no
parents."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.records import AttemptRecord, JobRecord, TaskRecord
from holdfast.core.spec import JobSpec
from holdfast.core.states import AttemptState, JobEvent, JobState
from holdfast.core.transitions import JOB, sources
from holdfast.moves.jobs import drains, requests
from holdfast.moves.jobs.moves import last_beat
from holdfast.moves.rows import START_TIME, JobRow, NewEvent
from holdfast.moves.values import NewJob, Submitted
from holdfast.store.clock import Now
from tests.model.state import InMemory, MemoryJob, MemoryState


class MemoryJobs(InMemory):
    """`PostgresJobs` in the model."""

    async def submit_jobs(self, jobs: Sequence[NewJob], *, now: Now = None) -> list[Submitted]:
        s, at = self.state, self.state.at(now)
        for name in sorted({job.queue for job in jobs}):
            if name not in s.queues:
                raise requests.refuse_queue(name)
        for job in jobs:
            insert_job(s, job, at)
        return [Submitted(job=s.job_record(job.id), created=True) for job in jobs]

    async def get_job(self, job_id: str) -> JobRecord:
        if job_id not in self.state.jobs:
            raise requests.no_job(job_id)
        return self.state.job_record(job_id)

    async def list_tasks(self, job_id: str) -> list[TaskRecord]:
        return [
            self.state.task_record(task)
            for _, task in sorted(self.state.tasks.get(job_id, {}).items())
        ]

    async def list_attempts(self, job_id: str) -> list[AttemptRecord]:
        if job_id not in self.state.jobs:
            raise requests.no_job(job_id)
        return [self._attempt(attempt) for attempt in self.state.attempts.get(job_id, [])]

    def _attempt(self, attempt: AttemptRecord) -> AttemptRecord:
        tasks = self.state.tasks.get(attempt.job_id, {}).values()
        beat = None if attempt.state is AttemptState.ENDED else last_beat(tasks)
        if beat is None:
            return attempt
        return msgspec.structs.replace(
            attempt,
            step=beat.step,
            total=beat.total,
            first_beat_at=min(t.first_beat_at for t in tasks if t.first_beat_at is not None),
        )

    async def cancel_job(
        self, job_id: str, reason: str, *, hard: bool = False, now: Now = None
    ) -> JobRecord:
        m = self.state.load([job_id], self.state.at(now))
        if job_id not in m.jobs:
            raise requests.no_job(job_id)
        requests.cancel(m, m.jobs[job_id], reason, hard=hard)
        self.state.commit(m)
        return self.state.job_record(job_id)

    async def revive_job(
        self,
        job_id: str,
        reason: str,
        *,
        counted: bool = False,
        from_scratch: bool = False,
        now: Now = None,
    ) -> JobRecord:
        m = self.state.load([job_id], self.state.at(now))
        if job_id not in m.jobs:
            raise requests.no_job(job_id)
        job = m.jobs[job_id]
        requests.check_revivable(job_id, job.state, job.wait_cause)
        if job.queue not in self.state.queues:
            raise requests.refuse_queue(job.queue)
        chain = self.state.attempts.get(job_id, [])
        requests.revive(
            m, job, reason, made=(chain[-1].retry_count if chain else 0) if counted else None
        )
        self.state.commit(m)
        return self.state.job_record(job_id)

    async def drain_job(
        self,
        job_id: str,
        cause: Cause,
        reason: str,
        *,
        hard: bool = False,
        epoch: int | None = None,
        notice_seconds: float | None = None,
        now: Now = None,
    ) -> bool:
        m = self.state.load([job_id], self.state.at(now))
        job = m.jobs.get(job_id)
        if job is None:
            raise requests.no_job(job_id)
        if job.state not in sources(JOB, JobEvent.DRAIN) or epoch not in (None, job.epoch):
            return False
        drains.begin_drain(m, job, cause, reason, hard=hard, notice_seconds=notice_seconds)
        self.state.commit(m)
        return True


def insert_job(s: MemoryState, job: NewJob, at: datetime) -> None:
    """Write a new job and its event."""
    spec = job.spec
    start = None if spec.start_at is None else datetime.fromtimestamp(spec.start_at, UTC)
    late = start is not None and start > at
    row = JobRow(
        supervised=spec.supervised,
        id=job.id,
        epoch=0,
        attempts=0,
        project=spec.project,
        queue=job.queue,
        tasks=spec.tasks,
        created_at=at,
        state=JobState.WAITING if late else JobState.QUEUED,
        reason=requests.WAITS_FOR_START if late else requests.SUBMITTED,
        wait_cause=START_TIME if late else None,
        wait_until=start if late else None,
        queued_at=None if late else at,
    )
    s.jobs[job.id] = MemoryJob(
        row=row,
        name=spec.title,
        owner=job.owner,
        priority=spec.priority,
        gpus=spec.gpus,
        cpu_slots=spec.cpu_slots,
        memory_bytes=spec.memory_bytes,
        labels=dict(spec.labels),
        spec=spec.without_secrets(),
        ord=s.next_ord(),
    )
    s.by_state[row.state][job.id] = None
    s.log([_tell_submitted(row, spec, job.owner)], at)


def _tell_submitted(row: JobRow, spec: JobSpec, owner: str) -> NewEvent:
    return NewEvent(
        kind="job.submitted",
        job_id=row.id,
        epoch=0,
        queue=row.queue,
        project=row.project,
        message=row.reason,
        data={"name": spec.title, "owner": owner},
    )
