"""Settings, queues, jobs and admission in memory."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.placement import Candidate, JobPlacement, silence_seconds
from holdfast.core.records import AttemptRecord, JobRecord, QueueRecord, TaskRecord
from holdfast.core.settings import Value, resolve
from holdfast.core.states import AttemptState, HostState, JobEvent, JobState, TaskEvent, TaskState
from holdfast.core.transitions import JOB, TASK, sources, step
from holdfast.errors import Conflict
from holdfast.store import moves
from holdfast.store.changes import (
    check_changes,
    deleted_event,
    merge_layer,
    no_queue,
    pause_reason,
    paused_event,
    queue_event,
    queue_in_use,
    resumed_event,
    settings_event,
)
from holdfast.store.interface import AdmissionSnapshot, JobFilter, NewJob, Submitted
from holdfast.store.memory_state import UNFINISHED, MemoryJob, MemoryQueue, MemoryState
from holdfast.store.moves import LIVE_JOB_STATES, last_beat
from holdfast.store.registration import drain_jobs_for
from holdfast.store.room import Room, name_hosts, plan_headroom, serves
from holdfast.store.rows import JobRow, NewEvent, TaskRow
from holdfast.store.submission import (
    DUE,
    SUBMITTED,
    WAITS_FOR_START,
    check_revivable,
    expired_reason,
    hash_spec,
    no_job,
    refuse_mismatch,
    refuse_queue,
    run_out_reason,
)


class MemorySettings:
    """Settings and queues."""

    state: MemoryState

    async def read_settings(self) -> tuple[int, dict[str, Value], dict[str, dict[str, Value]]]:
        """See `Store.read_settings`."""
        s = self.state
        return s.settings_rev, dict(s.settings), {q.name: dict(q.settings) for q in s.queues.values()}

    async def write_cluster_settings(
        self, changes: Mapping[str, Value], unset: Sequence[str] = (), *, now: datetime | None = None
    ) -> int:
        """See `Store.write_cluster_settings`."""
        checked = check_changes(changes, unset, "cluster")
        merged = merge_layer(self.state.settings, checked, unset)
        if merged != self.state.settings:
            self.state.settings = merged
            self.state.settings_rev += 1
            self.state.log([settings_event(checked, unset)], self.state.at(now))
        return self.state.settings_rev

    async def list_queues(self) -> list[QueueRecord]:
        """See `Store.list_queues`."""
        counts: dict[str, dict[str, int]] = {}
        for state in UNFINISHED:
            word = state.value if state in (JobState.WAITING, JobState.QUEUED) else "running"
            for job_id in self.state.by_state[state]:
                of = counts.setdefault(self.state.jobs[job_id].row.queue, {})
                of[word] = of.get(word, 0) + 1
        return [
            QueueRecord(
                name=q.name, settings=dict(q.settings), paused_at=q.paused_at, paused_reason=q.paused_reason,
                created_at=q.created_at, **counts.get(q.name, {}),
            )
            for _, q in sorted(self.state.queues.items())
        ]  # fmt: skip

    async def get_queue(self, name: str) -> QueueRecord:
        """See `Store.get_queue`."""
        self._queue(name)
        return next(q for q in await self.list_queues() if q.name == name)

    def _queue(self, name: str) -> MemoryQueue:
        if name not in self.state.queues:
            raise no_queue(name)
        return self.state.queues[name]

    async def put_queue(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = (), *, now: datetime | None = None
    ) -> QueueRecord:
        """See `Store.put_queue`."""
        checked = check_changes(changes, unset, "queue")
        at, queue = self.state.at(now), self.state.queues.get(name)
        before = {} if queue is None else queue.settings
        merged = merge_layer(before, checked, unset)
        if queue is None or merged != before:
            created = queue is None
            queue = queue or MemoryQueue(name=name, settings={}, created_at=at)
            queue.settings = merged
            self.state.queues[name] = queue
            self.state.settings_rev += 1
            self.state.log([queue_event(name, checked, unset, created=created)], at)
        return await self.get_queue(name)

    async def delete_queue(self, name: str, *, now: datetime | None = None) -> None:
        """See `Store.delete_queue`."""
        self._queue(name)
        if any(self.state.jobs[i].row.queue == name for state in UNFINISHED for i in self.state.by_state[state]):
            raise queue_in_use(name)
        del self.state.queues[name]
        self.state.settings_rev += 1
        self.state.log([deleted_event(name)], self.state.at(now))

    async def pause_queue(self, name: str, reason: str, *, hard: bool, now: datetime | None = None) -> list[str]:
        """See `Store.pause_queue`."""
        at, queue = self.state.at(now), self._queue(name)
        if (queue.paused_at is not None, queue.paused_reason, queue.hard) != (True, reason, hard):
            queue.paused_at, queue.paused_reason, queue.hard = queue.paused_at or at, reason, hard
            self.state.log([paused_event(name, reason, hard)], at)
        if not hard:
            return []
        running = [*self.state.by_state[JobState.RESERVED], *self.state.by_state[JobState.RUNNING]]
        m = self.state.load([i for i in running if self.state.jobs[i].row.queue == name], at)
        drained = drain_jobs_for(m, Cause.PREEMPTED, pause_reason(name, reason), None)
        self.state.commit(m)
        return drained

    async def resume_queue(self, name: str, *, now: datetime | None = None) -> None:
        """See `Store.resume_queue`."""
        queue = self._queue(name)
        if queue.paused_at is not None:
            queue.paused_at, queue.paused_reason, queue.hard = None, "", False
            self.state.log([resumed_event(name)], self.state.at(now))


class MemoryJobs:
    """Jobs, tasks and attempts."""

    state: MemoryState

    async def submit_jobs(self, jobs: Sequence[NewJob], *, now: datetime | None = None) -> list[Submitted]:
        """See `Store.submit_jobs`."""
        s, at = self.state, self.state.at(now)
        for name in sorted({job.queue for job in jobs}):
            if name not in s.queues:
                raise refuse_queue(name)
        stands_for: list[str] = []  # each submission's own id, or the earlier job's its key names
        planned: dict[str, tuple[NewJob, str]] = {}
        keys: dict[tuple[str, str], str] = {}
        for job in jobs:
            key, digest = job.spec.idempotency_key, hash_spec(job.spec)
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
                    if key is None:
                        raise Conflict(f"job {job.id} is there already, with another spec")
                    raise refuse_mismatch(job.spec.project, key, earlier)
            stands_for.append(earlier or job.id)
        for job, digest in planned.values():
            self._insert(job, digest, at)
        return [
            Submitted(job=s.job_record(found), created=found == job.id)
            for job, found in zip(jobs, stands_for, strict=True)
        ]

    def _insert(self, job: NewJob, digest: str, at: datetime) -> None:
        s, spec = self.state, job.spec
        start = None if spec.start_at is None else datetime.fromtimestamp(spec.start_at, UTC)
        late = start is not None and start > at
        row = JobRow(
            id=job.id, project=spec.project, queue=job.queue, tasks=spec.tasks, created_at=at,
            state=JobState.WAITING if late else JobState.QUEUED, reason=WAITS_FOR_START if late else SUBMITTED,
            wait_cause="start_time" if late else None, wait_until=start if late else None,
            queued_at=None if late else at,
        )  # fmt: skip
        s.jobs[job.id] = MemoryJob(
            row=row, name=spec.title, priority=spec.priority, gpus=spec.gpus, cpu_slots=spec.cpu_slots,
            memory_bytes=spec.memory_bytes, labels=dict(spec.labels), spec=spec.without_secrets(),
            secrets=dict(spec.secrets), spec_hash=digest, ord=s.next_ord(),
        )  # fmt: skip
        s.by_state[row.state][job.id] = None
        if spec.idempotency_key is not None:
            s.keys[spec.project, spec.idempotency_key] = job.id
        event = NewEvent(kind="job.submitted", job_id=job.id, epoch=0, queue=job.queue, project=spec.project,
                         message=row.reason, data={"name": spec.title})  # fmt: skip
        s.log([event], at)

    async def get_job(self, job_id: str) -> JobRecord:
        """See `Store.get_job`."""
        if job_id not in self.state.jobs:
            raise no_job(job_id)
        return self.state.job_record(job_id)

    async def list_jobs(self, filter: JobFilter) -> list[JobRecord]:
        """See `Store.list_jobs`."""
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
            and filter.queue in (None, row.queue) and filter.project in (None, row.project)
            and filter.name in (None, job.name) and filter.cause in (None, row.cause)
            and filter.labels.items() <= job.labels.items()
            and (filter.before is None or job_id < filter.before)
            and (filter.host_id is None or any(t.host_id == filter.host_id and t.state.holds_lease for t in tasks))
        )  # fmt: skip

    async def count_jobs(self) -> dict[tuple[str, str], int]:
        """See `Store.count_jobs`."""
        counts: dict[tuple[str, str], int] = {}
        for state in UNFINISHED:
            for job_id in self.state.by_state[state]:
                place = (self.state.jobs[job_id].row.queue, state.value)
                counts[place] = counts.get(place, 0) + 1
        return counts

    async def list_tasks(self, job_id: str) -> list[TaskRecord]:
        """See `Store.list_tasks`."""
        return [self.state.task_record(task) for _, task in sorted(self.state.tasks.get(job_id, {}).items())]

    async def list_attempts(self, job_id: str) -> list[AttemptRecord]:
        """See `Store.list_attempts`."""
        if job_id not in self.state.jobs:
            raise no_job(job_id)
        return [self._attempt(attempt) for attempt in self.state.attempts.get(job_id, [])]

    def _attempt(self, attempt: AttemptRecord) -> AttemptRecord:
        beat = None
        if attempt.state is not AttemptState.ENDED:
            beat = last_beat(self.state.tasks.get(attempt.job_id, {}).values())
        has = any(place[:2] == (attempt.job_id, attempt.number) for place in self.state.forensics)
        live = {} if beat is None else {"step": beat.step, "total": beat.total}
        return msgspec.structs.replace(attempt, has_forensics=has, **live)

    async def queue_place(self, job_id: str) -> int:
        """See `Store.queue_place`."""
        job = self.state.jobs.get(job_id)
        if job is None or job.row.state is not JobState.QUEUED:
            return 0
        mine = (-job.priority, job.ord)
        before = (self.state.jobs[i] for i in self.state.by_state[JobState.QUEUED])
        ahead = sum(1 for j in before if j.row.queue == job.row.queue and (-j.priority, j.ord) < mine)
        return min(ahead, 10_000)

    async def cancel_job(
        self, job_id: str, reason: str, *, hard: bool = False, now: datetime | None = None
    ) -> JobRecord:
        """See `Store.cancel_job`."""
        m = self.state.load([job_id], self.state.at(now))
        if job_id not in m.jobs:
            raise no_job(job_id)
        moves.cancel(m, m.jobs[job_id], reason, hard=hard)
        self.state.commit(m)
        return self.state.job_record(job_id)

    async def revive_job(self, job_id: str, reason: str, *, now: datetime | None = None) -> JobRecord:
        """See `Store.revive_job`."""
        m = self.state.load([job_id], self.state.at(now))
        if job_id not in m.jobs:
            raise no_job(job_id)
        job = m.jobs[job_id]
        check_revivable(job_id, job.state)
        if job.queue not in self.state.queues:
            raise refuse_queue(job.queue)
        moves.revive(m, job, reason)
        self.state.commit(m)
        return self.state.job_record(job_id)

    async def drain_job(
        self, job_id: str, cause: Cause, reason: str, *, hard: bool = False, now: datetime | None = None
    ) -> bool:
        """See `Store.drain_job`."""
        m = self.state.load([job_id], self.state.at(now))
        job = m.jobs.get(job_id)
        if job is None:
            raise no_job(job_id)
        if job.state not in sources(JOB, JobEvent.DRAIN):
            return False
        moves.begin_drain(m, job, cause, reason, hard=hard)
        self.state.commit(m)
        return True

    async def release_due(self, *, now: datetime | None = None) -> int:
        """See `Store.release_due`."""
        at, waiting = self.state.at(now), list(self.state.by_state[JobState.WAITING])
        m = self.state.load([i for i in waiting if self._is_due(i, at)], at)
        for job in m.jobs.values():
            m.move_job(job, JobEvent.RELEASE, DUE)
            job.wait_cause, job.wait_until, job.queued_at = None, None, at
            m.log("job.released", job, DUE)
        self.state.commit(m)
        return len(m.jobs)

    def _is_due(self, job_id: str, at: datetime) -> bool:
        until = self.state.jobs[job_id].row.wait_until
        return until is not None and until <= at


class MemoryAdmission:
    """From queued to reserved, and back."""

    state: MemoryState
    environment: Mapping[str, Value]

    async def read_admission(self, limit: int, *, now: datetime | None = None) -> AdmissionSnapshot:
        """See `Store.read_admission`."""
        s, at = self.state, self.state.at(now)
        cluster = [("cluster", s.settings), ("environment", self.environment)]
        dead, interval = (
            float(resolve(name, cluster).value or 0) for name in ("dead_host_seconds", "sync_interval_seconds")
        )
        silence = timedelta(seconds=silence_seconds(dead, interval))
        active = [
            h for _, h in sorted(s.hosts.items()) if h.state is HostState.ACTIVE and h.heartbeat_at >= at - silence
        ]
        hosts = [s.capacity(h) for h in active]
        live: dict[str, int] = {}
        for state in LIVE_JOB_STATES:
            for job_id in s.by_state[state]:
                queue = s.jobs[job_id].row.queue
                live[queue] = live.get(queue, 0) + 1
        limits: dict[str, int | None] = {}
        for q in s.queues.values():
            value = resolve("max_running", [("queue", q.settings), *cluster]).value
            limits[q.name] = None if value is None else int(value)
        headroom = plan_headroom(limits, live)
        served = serves(hosts)
        lanes: dict[str, list[MemoryJob]] = {
            q.name: [] for q in s.queues.values()
            if q.paused_at is None and headroom.get(q.name, 1) > 0 and served(q.name)
        }  # fmt: skip
        for job_id in s.by_state[JobState.QUEUED]:
            job = s.jobs[job_id]
            if job.row.queue in lanes:
                lanes[job.row.queue].append(job)
        tops = [heapq.nsmallest(limit, jobs, key=_order) for jobs in lanes.values()]
        return AdmissionSnapshot(
            candidates=tuple(_candidate(job) for job in sorted((j for top in tops for j in top), key=_order)),
            hosts=tuple(hosts), headroom=headroom, settings_rev=s.settings_rev,
        )  # fmt: skip

    async def reserve(
        self, placements: Sequence[JobPlacement], ttls: Mapping[str, float], *, now: datetime | None = None
    ) -> list[str]:
        """See `Store.reserve`."""
        s, at = self.state, self.state.at(now)
        ids = {t.host_id for p in placements for t in p.tasks}
        room = Room(s.capacity(h) for h in s.hosts.values() if h.id in ids and h.state is HostState.ACTIVE)
        applied = []
        for p in placements:
            job = s.jobs.get(p.job_id)
            if job is None or job.row.state not in sources(JOB, JobEvent.RESERVE) or job.row.epoch != p.epoch:
                continue
            queue = s.queues.get(job.row.queue)
            if queue is not None and queue.paused_at is not None:
                continue
            if len(p.tasks) == job.row.tasks and room.take(p, (job.gpus, job.cpu_slots, job.memory_bytes)):
                self._reserve(job, p, ttls[p.job_id], room, at)
                applied.append(p.job_id)
        return applied

    def _reserve(self, job: MemoryJob, placement: JobPlacement, ttl: float, room: Room, at: datetime) -> None:
        s = self.state
        m = s.load([job.row.id], at)
        row = m.jobs[job.row.id]
        ranks = sorted(placement.tasks, key=lambda t: t.rank)
        hosts = name_hosts(room.name(t.host_id) for t in ranks)
        m.move_job(row, JobEvent.RESERVE, f"reserved on {hosts}")
        row.epoch += 1
        row.attempts += 1
        row.started_at = row.step = row.total = row.beat_at = row.trigger_rank = None
        for place in ranks:
            task = TaskRow(
                job_id=row.id, rank=place.rank, epoch=row.epoch, attempt=row.attempts,
                state=step(TASK, TaskState.BLOCKED, TaskEvent.RESERVE), queue=row.queue, gpus=job.gpus,
                cpu_slots=job.cpu_slots, memory_bytes=job.memory_bytes, host_id=place.host_id,
                incarnation=place.incarnation, devices=place.devices, lease_ttl_seconds=ttl,
            )  # fmt: skip
            s.put_task(task)
            m.tasks[row.id][place.rank] = task
        attempt = AttemptRecord(
            job_id=row.id, number=row.attempts, parent=row.attempts - 1 or None, epoch=row.epoch,
            state=AttemptState.RESERVED, reason=row.reason, host=hosts, host_ids=tuple(t.host_id for t in ranks),
            reserved_at=at,
        )  # fmt: skip
        s.attempts.setdefault(row.id, []).append(attempt)
        m.log("job.reserved", row, row.reason)
        s.commit(m)

    async def expire_reservations(self, reservation_seconds: float, *, now: datetime | None = None) -> list[str]:
        """See `Store.expire_reservations`."""
        s, at = self.state, self.state.at(now)
        before = at - timedelta(seconds=reservation_seconds)
        found = [
            i for i in s.by_state[JobState.RESERVED]
            if s.attempts[i][-1].reserved_at <= before and any(t.offered_at is None for t in s.tasks[i].values())
        ]  # fmt: skip
        m = s.load(found, at)
        for job in m.jobs.values():
            if all(t.offered_at is None for t in m.ranks(job)):
                moves.expire(m, job, expired_reason(reservation_seconds))
            else:
                moves.run_out(m, job, run_out_reason(reservation_seconds))
        s.commit(m)
        return list(m.jobs)


def _order(job: MemoryJob) -> tuple[int, int]:
    return (-job.priority, job.ord)


def _candidate(job: MemoryJob) -> Candidate:
    row = job.row
    return Candidate(
        job_id=row.id, epoch=row.epoch, queue=row.queue, priority=job.priority, tasks=row.tasks, gpus=job.gpus,
        cpu_slots=job.cpu_slots, memory_bytes=job.memory_bytes, avoid_hosts=row.avoid_hosts,
        lease_ttl_seconds=job.spec.lease_ttl_seconds,
    )  # fmt: skip
