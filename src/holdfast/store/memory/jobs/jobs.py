"""Jobs, their tasks and attempts in memory."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.records import AttemptRecord, JobRecord, MemberRecord, TaskRecord
from holdfast.core.settings.resolve import Value
from holdfast.core.spec import JobSpec
from holdfast.core.states import AttemptState, JobEvent, JobState
from holdfast.core.transitions import JOB, sources
from holdfast.errors import HoldfastError
from holdfast.moves.jobs import drains, requests
from holdfast.moves.jobs.moves import last_beat
from holdfast.moves.jobs.quotas import check_quota, read_quota
from holdfast.moves.jobs.requests import Changed
from holdfast.moves.rows import DEPENDENCY, START_TIME, JobRow, NewEvent
from holdfast.moves.values import JobFilter, NewJob, Submitted
from holdfast.store.memory.dependencies import find_parents, say_waits, write_dependencies
from holdfast.store.memory.state import UNFINISHED, InMemory, MemoryJob, MemoryState
from holdfast.store.port.clock import Now


class MemoryJobs(InMemory):
    """`JobStore` in memory."""

    def __init__(self, state: MemoryState, environment: Mapping[str, Value]) -> None:
        super().__init__(state)
        self.environment = environment

    async def submit_jobs(self, jobs: Sequence[NewJob], *, now: Now = None) -> list[Submitted]:
        s, at = self.state, self.state.at(now)
        for name in sorted({job.queue for job in jobs}):
            if name not in s.queues:
                raise requests.refuse_queue(name)
        stands_for: list[str] = []  # each submission's own id, or the earlier job's its key names
        planned: dict[str, tuple[NewJob, str]] = {}
        keys: dict[tuple[str, str], str] = {}
        for job in jobs:
            key, digest = job.spec.idempotency_key, requests.hash_spec(job.spec)
            place = None if key is None else (job.spec.project, key)
            earlier = job.id if job.id in s.jobs or job.id in planned else None
            if earlier is None and place is not None:
                earlier = s.keys.get(place) or keys.get(place)
            if earlier is None:
                planned[job.id] = (job, digest)
                if place is not None:
                    keys[place] = job.id
            else:
                known = s.jobs[earlier].spec_hash if earlier in s.jobs else planned[earlier][1]
                if known != digest:
                    before = s.jobs[earlier] if earlier in s.jobs else planned[earlier][0]
                    named = None if earlier == job.id else key
                    raise requests.refuse_mismatch(earlier, before.spec, job.spec, named)
            stands_for.append(earlier or job.id)
        check_quotas(
            s,
            self.environment,
            [(job.spec.project, job.spec.gpus * job.spec.tasks) for job, _ in planned.values()],
        )
        new = {job.id: job.spec for job, _ in planned.values()}
        names = find_parents(s, new.values())
        for job, digest in planned.values():
            reason = say_waits(job.spec, names) if job.spec.after else ""
            insert_job(s, job, digest, at, wait_cause=DEPENDENCY if reason else None, reason=reason)
        write_dependencies(s, new, at)
        return [
            Submitted(job=s.job_record(found), created=found == job.id)
            for job, found in zip(jobs, stands_for, strict=True)
        ]

    async def get_job(self, job_id: str) -> JobRecord:
        if job_id not in self.state.jobs:
            raise requests.no_job(job_id)
        return self.state.job_record(job_id)

    async def get_jobs(self, job_ids: Collection[str]) -> dict[str, JobRecord]:
        return {
            job_id: self.state.job_record(job_id) for job_id in job_ids if job_id in self.state.jobs
        }

    async def list_jobs(self, filter: JobFilter) -> list[JobRecord]:
        found: list[JobRecord] = []
        for job_id in sorted(self.state.jobs, reverse=True):
            if len(found) >= filter.limit:
                break
            if self._matches(job_id, filter):
                found.append(self.state.job_record(job_id))
        return found

    def _matches(self, job_id: str, filter: JobFilter) -> bool:
        job, row = self.state.jobs[job_id], self.state.jobs[job_id].row
        tasks = self.state.tasks.get(job_id, {}).values()
        return (
            (not filter.states or row.state in filter.states)
            and filter.queue in (None, row.queue)
            and filter.project in (None, row.project)
            and filter.owner in (None, job.owner)
            and filter.parent in (None, job.spec.parent)
            and filter.name in (None, job.name)
            and (filter.part or "").lower() in job.name.lower()
            and (filter.since is None or row.created_at >= filter.since)
            and job_id.startswith(filter.prefix or "")
            and filter.cause in (None, row.cause)
            and (filter.min_retries is None or self._retries(row) >= filter.min_retries)
            and (filter.max_retries is None or self._retries(row) <= filter.max_retries)
            and filter.labels.items() <= job.labels.items()
            and filter.array_id in (None, row.array_id)
            and not (filter.single and row.array_id is not None)
            and (
                filter.executors is None or (filter.executors == "only") == bool(job.spec.executor)
            )
            and filter.family in (None, job.spec.executor)
            and (filter.before is None or job_id < filter.before)
            and (
                filter.host_id is None
                or any(t.host_id == filter.host_id and t.state.holds_lease for t in tasks)
            )
        )

    def _retries(self, row: JobRow) -> int:
        """Return the number of retries made or scheduled, without the charge of a failure that
        ended the job."""
        if row.ended_at is None:
            return row.retries_charged
        return max(
            (attempt.retry_count for attempt in self.state.attempts.get(row.id, [])), default=0
        )

    async def count_children(self, job_id: str) -> int:
        jobs = self.state.jobs.values()
        return sum(job.spec.parent == job_id and job.row.ended_at is None for job in jobs)

    async def list_left_children(self) -> list[tuple[str, str]]:
        cancelled = Cause.USER_CANCELLED
        found = []
        for job_id, job in sorted(self.state.jobs.items()):
            parent = self.state.jobs.get(job.spec.parent)
            open_ = job.row.ended_at is None and job.row.drain_cause is not cancelled
            if parent is None or job.spec.detached or not open_:
                continue
            if parent.row.state is JobState.CANCELLED or parent.row.drain_cause is cancelled:
                found.append((job_id, parent.row.id))
        return found[:1000]

    async def count_jobs(self) -> dict[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for state in UNFINISHED:
            for job_id in self.state.by_state[state]:
                place = (self.state.jobs[job_id].row.queue, state.value)
                counts[place] = counts.get(place, 0) + 1
        return counts

    async def count_waiting(self) -> dict[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for job_id in self.state.by_state[JobState.WAITING]:
            row = self.state.jobs[job_id].row
            place = (row.project, row.wait_cause or "")
            counts[place] = counts.get(place, 0) + 1
        return counts

    async def queue_places(self, job_ids: Collection[str]) -> dict[str, int]:
        queued = [self.state.jobs[i] for i in self.state.by_state[JobState.QUEUED]]
        asked = set(job_ids)
        return {
            job.row.id: min(10_000, sum(_stands_before(other, job) for other in queued))
            for job in queued
            if job.row.id in asked
        }

    async def list_tasks(self, job_id: str) -> list[TaskRecord]:
        return [
            self.state.task_record(task)
            for _, task in sorted(self.state.tasks.get(job_id, {}).items())
        ]

    async def list_tasks_of(
        self, job_ids: Collection[str], *, first: int, after: int = -1
    ) -> dict[str, list[TaskRecord]]:
        found: dict[str, list[TaskRecord]] = {}
        for job_id in job_ids:
            tasks = [task for task in await self.list_tasks(job_id) if task.rank > after]
            if tasks:
                found[job_id] = tasks[:first]
        return found

    async def list_attempts(self, job_id: str) -> list[AttemptRecord]:
        if job_id not in self.state.jobs:
            raise requests.no_job(job_id)
        return [self._attempt(attempt) for attempt in self.state.attempts.get(job_id, [])]

    async def list_attempts_of(
        self,
        job_ids: Collection[str],
        *,
        last: int,
        before: int | None = None,
        cause: Cause | None = None,
    ) -> dict[str, list[AttemptRecord]]:
        found: dict[str, list[AttemptRecord]] = {}
        for job_id in job_ids:
            fitting = [
                attempt
                for attempt in self.state.attempts.get(job_id, [])
                if (before is None or attempt.number < before) and cause in (None, attempt.cause)
            ]
            if fitting:
                found[job_id] = [
                    msgspec.structs.replace(self._attempt(a), members=()) for a in fitting[-last:]
                ]
        return found

    async def get_attempts(
        self, keys: Collection[tuple[str, int]], *, members: bool = False
    ) -> dict[tuple[str, int], AttemptRecord]:
        found = self._find_attempts(keys)
        if members:
            return found
        return {key: msgspec.structs.replace(attempt, members=()) for key, attempt in found.items()}

    def _find_attempts(
        self, keys: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], AttemptRecord]:
        asked = set(keys)
        return {
            (job_id, attempt.number): self._attempt(attempt)
            for job_id in {job_id for job_id, _ in asked}
            for attempt in self.state.attempts.get(job_id, [])
            if (job_id, attempt.number) in asked
        }

    async def list_members_of(
        self, keys: Collection[tuple[str, int]], *, first: int, after: int = -1
    ) -> dict[tuple[str, int], list[MemberRecord]]:
        found: dict[tuple[str, int], list[MemberRecord]] = {}
        for key, attempt in self._find_attempts(keys).items():
            members = sorted((m for m in attempt.members if m.rank > after), key=lambda m: m.rank)
            if members:
                found[key] = members[:first]
        return found

    def _attempt(self, attempt: AttemptRecord) -> AttemptRecord:
        beat = None
        if attempt.state is not AttemptState.ENDED:
            beat = last_beat(self.state.tasks.get(attempt.job_id, {}).values())
        has = any(place[:2] == (attempt.job_id, attempt.number) for place in self.state.forensics)
        live = {} if beat is None else {"step": beat.step, "total": beat.total}
        return msgspec.structs.replace(attempt, has_forensics=has, **live)

    async def cancel_job(
        self, job_id: str, reason: str, *, hard: bool = False, now: Now = None
    ) -> JobRecord:
        m = self.state.load([job_id], self.state.at(now))
        if job_id not in m.jobs:
            raise requests.no_job(job_id)
        requests.cancel(m, m.jobs[job_id], reason, hard=hard)
        self.state.commit(m)
        return self.state.job_record(job_id)

    async def cancel_jobs(
        self, job_ids: Collection[str], reason: str, *, hard: bool = False, now: Now = None
    ) -> Changed:
        done = Changed(jobs={}, refused={})
        for job_id in sorted(set(job_ids)):
            try:
                done.jobs[job_id] = await self.cancel_job(job_id, reason, hard=hard, now=now)
            except HoldfastError as error:
                done.refused[job_id] = error
        return done

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
        if job.ended_at is not None:  # a parked job counts as unfinished already
            check_quotas(
                self.state,
                self.environment,
                [(job.project, self.state.jobs[job_id].gpus * job.tasks)],
            )
        chain = self.state.attempts.get(job_id, [])
        requests.revive(
            m, job, reason, made=(chain[-1].retry_count if chain else 0) if counted else None
        )
        self.state.commit(m)
        if from_scratch:
            self.state.checkpoints = {
                k: v for k, v in self.state.checkpoints.items() if k[0] != job_id
            }
        return self.state.job_record(job_id)

    async def revive_jobs(
        self,
        reasons: Mapping[str, str],
        *,
        counted: bool = False,
        from_scratch: bool = False,
        now: Now = None,
    ) -> Changed:
        done = Changed(jobs={}, refused={})
        for job_id, reason in sorted(reasons.items()):
            try:
                done.jobs[job_id] = await self.revive_job(
                    job_id, reason, counted=counted, from_scratch=from_scratch, now=now
                )
            except HoldfastError as error:
                done.refused[job_id] = error
        return done

    async def drain_job(
        self,
        job_id: str,
        cause: Cause,
        reason: str,
        *,
        hard: bool = False,
        epoch: int | None = None,
        now: Now = None,
    ) -> bool:
        m = self.state.load([job_id], self.state.at(now))
        job = m.jobs.get(job_id)
        if job is None:
            raise requests.no_job(job_id)
        if job.state not in sources(JOB, JobEvent.DRAIN) or epoch not in (None, job.epoch):
            return False
        drains.begin_drain(m, job, cause, reason, hard=hard)
        self.state.commit(m)
        return True

    async def prune(self, history_days: float, *, limit: int = 1000, now: Now = None) -> int:
        s, before = self.state, self.state.at(now) - timedelta(days=history_days)
        old = [
            (job.row.ended_at, i)
            for i, job in s.jobs.items()
            if job.row.ended_at is not None and job.row.ended_at < before
        ]
        held = _list_held(s, before)
        gone = set([i for _, i in sorted(old) if i not in held][:limit])
        for job_id in gone:
            s.attempts.pop(job_id, None)
            del s.jobs[job_id]
        s.edges = {edge: wants for edge, wants in s.edges.items() if edge[0] not in gone}
        s.keys = {key: i for key, i in s.keys.items() if i not in gone}
        s.arrays = {i: a for i, a in s.arrays.items() if s.jobs.keys() & set(a.member_ids)}
        s.streams = {place: log for place, log in s.streams.items() if place[0] not in gone}
        s.replacements = [r for r in s.replacements if r.job_id not in gone]
        s.log_bases = {place: base for place, base in s.log_bases.items() if place[0] not in gone}
        s.forensics = {place: f for place, f in s.forensics.items() if place[0] not in gone}
        call_sets = {row.id for row in s.call_sets.values()}
        before_events = s.events
        s.events = [
            e
            for e in s.events
            if e.job_id not in gone
            and (
                e.job_id is not None
                or e.at >= before
                or e.data.get("array") in s.arrays
                or e.data.get("run") in s.runs
                or e.data.get("set") in call_sets
            )
        ]
        kept = {e.id for e in s.events}
        lost = [e.id for e in before_events if e.id not in kept]
        s.pruned_event = max([*lost, s.pruned_event or ""]) or None
        return len(gone)


def _list_held(s: MemoryState, before: datetime) -> set[str]:
    """Return the jobs that must stay because other rows name them (HISTORY-1)."""

    def lives(ended: datetime | None) -> bool:
        return ended is None or ended >= before

    held = {parent for _, parent in s.edges}
    for array in s.arrays.values():
        members = [i for i in array.member_ids if i in s.jobs]
        if array.id in held or any(lives(s.jobs[i].row.ended_at) for i in members):
            held.update(members)
    for job_id, job in s.jobs.items():
        run = s.runs.get(job.row.origin_run or "")
        if run is not None and lives(run.row.ended_at):
            held.add(job_id)
    held.update(schedule.record.last_job_id or "" for schedule in s.schedules.values())
    open_sets = {row.id for row in s.call_sets.values() if lives(row.ended_at)}
    for (job_id, *_), log in s.streams.items():
        if any(span.set_id in open_sets for span in log.outputs):
            held.add(job_id)
    return held


def insert_job(
    s: MemoryState,
    job: NewJob,
    digest: str,
    at: datetime,
    *,
    wait_cause: str | None,
    reason: str,
    array: tuple[str, int] | None = None,
    limited: bool = False,
) -> None:
    """Write a new job and its event.

    wait_cause, reason: the cause of its wait, besides its start time. array: (id, index) of its
    array. limited: the array limits how many members run at once.
    """
    spec = job.spec
    start = None if spec.start_at is None else datetime.fromtimestamp(spec.start_at, UTC)
    late = start is not None and start > at
    cause = wait_cause or (START_TIME if late else None)
    row = JobRow(
        supervised=spec.supervised,
        array_limited=limited,
        origin_run=None if job.origin is None else job.origin.run,
        origin_node=None if job.origin is None else job.origin.node,
        array_id=array[0] if array else None,
        array_index=array[1] if array else None,
        id=job.id,
        epoch=0,
        attempts=0,
        project=spec.project,
        queue=job.queue,
        tasks=spec.tasks,
        created_at=at,
        state=JobState.QUEUED if cause is None else JobState.WAITING,
        reason=reason or (requests.WAITS_FOR_START if late else requests.SUBMITTED),
        wait_cause=cause,
        wait_until=start if late else None,
        queued_at=at if cause is None else None,
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
        secrets=requests.list_secrets(job),
        spec_hash=digest,
        ord=s.next_ord(),
    )
    s.by_state[row.state][job.id] = None
    if spec.idempotency_key is not None:
        s.keys[spec.project, spec.idempotency_key] = job.id
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


def check_quotas(
    s: MemoryState, environment: Mapping[str, Value], asked: Sequence[tuple[str, int]]
) -> None:
    """Check hard quotas for new jobs (QUOTA-1). asked: (project, GPUs) of each job."""
    below = [("cluster", s.settings), ("environment", environment)]
    for name in sorted({project for project, _ in asked}):
        found = s.projects.get(name)
        quota = read_quota({} if found is None else found.settings, below)
        if quota is not None:
            check_quota(
                name, quota, s.use_of(name), [gpus for project, gpus in asked if project == name]
            )


def _stands_before(other: MemoryJob, job: MemoryJob) -> bool:
    return other.row.queue == job.row.queue and (-other.priority, other.ord) < (
        -job.priority,
        job.ord,
    )
