"""Admission in memory: from queued to reserved, and back."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from holdfast.core.causes import UNSTARTED
from holdfast.core.placement.plan import JobPlacement, RunningTask, Share, silence_seconds
from holdfast.core.placement.ranks import say_names
from holdfast.core.placement.types import find_kin
from holdfast.core.records import AttemptRecord, shared_fields
from holdfast.core.settings.resolve import Value, resolve
from holdfast.core.states import AttemptState, JobEvent, JobState, TaskEvent, TaskState
from holdfast.core.transitions import JOB, TASK, sources, step
from holdfast.moves.jobs import dispatch, requests
from holdfast.moves.jobs.moves import LIVE_JOB_STATES
from holdfast.moves.jobs.quotas import SHARES, Allotment, plan_owned, read_share
from holdfast.moves.jobs.room import RoomCheck, find_served, plan_headroom
from holdfast.moves.rows import BACK_OFF, RETRIES_HELD, START_TIME, TaskRow
from holdfast.moves.values import AdmissionSnapshot, Released, Reserved
from holdfast.store.clock import Now
from tests.model.jobs.candidates import candidate_of, limit_of
from tests.model.jobs.members import MemoryMembers
from tests.model.settings import quotas_left, read_switches
from tests.model.state import InMemory, MemoryJob, MemoryState, PassedOver


class MemoryAdmission(InMemory):
    """`PostgresAdmission` in the model."""

    def __init__(
        self, state: MemoryState, environment: Mapping[str, Value], members: MemoryMembers
    ) -> None:
        super().__init__(state)
        self.environment = environment
        self.members = members

    async def release_due(self, retry_limit: int | None = None, *, now: Now = None) -> Released:
        s, at = self.state, self.state.at(now)
        switches = read_switches(s, self.environment)
        rows = [s.jobs[job_id].row for job_id in s.by_state[JobState.WAITING]]
        due = (
            r.id
            for r in rows
            if r.wait_cause == RETRIES_HELD
            or (r.wait_cause in (START_TIME, BACK_OFF) and r.wait_until and r.wait_until <= at)
        )
        m = s.load(due, at)
        retries, done = [], {"started": 0, "held": 0}
        for job in m.jobs.values():
            held = switches.held_by(job.project)
            if job.wait_cause == RETRIES_HELD and held is None:
                dispatch.resume_retry(m, job)
            if job.wait_until is None or job.wait_until > at:
                continue
            if job.wait_cause != BACK_OFF:
                done["started"] += 1
                dispatch.release_start(m, job)
            elif held is not None:
                done["held"] += 1
                dispatch.hold_due(m, job, held)
            else:
                retries.append(job)
        retries.sort(key=lambda job: (job.wait_until, job.id))
        for job in retries[:retry_limit]:
            dispatch.dispatch_retry(m, job)
        s.commit(m)
        count = len(retries[:retry_limit])
        return Released(retries=count, left=count < len(retries), **done)

    async def read_admission(
        self, limit: int, *, but: Sequence[str] = (), now: Now = None
    ) -> AdmissionSnapshot:
        s, at = self.state, self.state.at(now)
        cluster = [("cluster", s.settings), ("environment", self.environment)]
        dead, interval = (
            float(resolve(name, cluster).value or 0)
            for name in ("dead_host_seconds", "sync_interval_seconds")
        )
        silence = timedelta(seconds=silence_seconds(dead, interval))
        active = [
            h for _, h in sorted(s.hosts.items()) if h.takes_work and h.heartbeat_at >= at - silence
        ]
        hosts = [s.capacity(h) for h in active]
        quotas = quotas_left(
            s, self.environment, {s.jobs[i].row.project for i in s.by_state[JobState.QUEUED]}
        )
        headroom, allotment = self._plan_headroom(cluster), Allotment(quotas)
        served = find_served(hosts)
        queues: dict[str, list[MemoryJob]] = {
            q.name: []
            for q in s.queues.values()
            if q.paused_at is None and headroom.get(q.name, 1) > 0 and served(q.name)
        }
        left_out = frozenset(but)
        for job_id in s.by_state[JobState.QUEUED]:
            job = s.jobs[job_id]
            allowed = allotment.allows(job.row.project, job.gpus * job.row.tasks)
            if job.row.queue in queues and allowed and job_id not in left_out:
                queues[job.row.queue].append(job)
        tops = [heapq.nsmallest(limit, jobs, key=order_of) for jobs in queues.values()]
        shares = self._read_shares()
        owned = self._list_owned(list(queues), shares, limit, left_out)
        return AdmissionSnapshot(
            candidates=(
                *self.members.list_blocked(at, limit),
                *(candidate_of(job, at) for job in _put_first(owned, tops)),
            ),
            hosts=tuple(hosts),
            headroom=headroom,
            settings_rev=s.settings_rev,
            quotas=quotas,
            shares=shares,
            lowest_preemptible=min(
                (
                    s.jobs[i].priority
                    for state in LIVE_JOB_STATES
                    for i in s.by_state[state]
                    if s.jobs[i].spec.preemptible
                ),
                default=None,
            ),
        )

    def _read_shares(self) -> dict[str, Share]:
        """Return the shares of all projects with queued or live jobs; an empty dict where no
        project has a share."""
        s = self.state
        layers = [s.settings, self.environment, *(p.settings for p in s.projects.values())]
        if not any(name in layer for layer in layers for name in SHARES):
            return {}
        below = [("cluster", s.settings), ("environment", self.environment)]
        states = (JobState.QUEUED, *LIVE_JOB_STATES)
        names = {s.jobs[i].row.project for state in states for i in s.by_state[state]}
        own = {name: s.projects[name].settings for name in names if name in s.projects}
        return {name: read_share(own.get(name, {}), below, s.use_of(name)) for name in names}

    def _list_owned(
        self, queues: Sequence[str], shares: Mapping[str, Share], limit: int, but: Collection[str]
    ) -> list[MemoryJob]:
        """Return the first jobs of each project and queue that fit into what is left of the
        project's share."""
        below, most = plan_owned(shares, limit)
        tops: dict[tuple[str, str], list[MemoryJob]] = {}
        for job_id in self.state.by_state[JobState.QUEUED]:
            job = self.state.jobs[job_id]
            if job.row.project in below and job.row.queue in queues and job_id not in but:
                tops.setdefault((job.row.project, job.row.queue), []).append(job)
        found = []
        for (project, _), jobs in tops.items():
            gpus, cpu_slots = below[project]
            for job in heapq.nsmallest(most, jobs, key=order_of):
                size = (job.gpus or job.cpu_slots) * job.row.tasks
                if size <= (gpus if job.gpus else cpu_slots):
                    found.append(job)
        return sorted(found, key=order_of)

    def _plan_headroom(self, cluster: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, int]:
        s = self.state
        live = Counter(s.jobs[i].row.queue for x in LIVE_JOB_STATES for i in s.by_state[x])
        limits: dict[str, int | None] = {}
        for q in s.queues.values():
            value = resolve("max_running", [("queue", q.settings), *cluster]).value
            limits[q.name] = None if value is None else int(value)
        return plan_headroom(limits, live)

    async def note_passed(self, job_ids: Sequence[str], *, holds: bool, now: Now = None) -> None:
        self.state.passed_over = PassedOver(
            at=self.state.at(now), holds=holds, job_ids=frozenset(job_ids)
        )

    async def read_running(self, *, now: Now = None) -> list[RunningTask]:
        s, at, running = self.state, self.state.at(now), []
        for state in LIVE_JOB_STATES:
            for job_id in s.by_state[state]:
                job = s.jobs[job_id]
                for task in s.tasks[job_id].values():
                    if not task.state.holds_lease:
                        continue
                    began = task.started_at
                    running.append(
                        RunningTask(
                            job_id=job_id,
                            host_id=task.host_id or "",
                            epoch=job.row.epoch,
                            queue=job.row.queue,
                            project=job.row.project,
                            priority=job.priority,
                            devices=len(task.devices),
                            cpu_slots=task.cpu_slots,
                            memory_bytes=task.memory_bytes,
                            ran_seconds=(at - began).total_seconds() if began else 0.0,
                            time_limit_seconds=limit_of(job.spec),
                            expected_seconds=job.spec.expected_seconds,
                            kin=find_kin(job.spec, job.row.array_id),
                            min_run_seconds=job.spec.preempt_min_run_seconds,
                            draining=state is JobState.DRAINING
                            and task.state is TaskState.PREEMPTING,
                            notice_left_seconds=_find_notice_left(job, at),
                            stoppable=_may_go(job, s.tasks[job_id].values())
                            and not job.spec.interactive,
                            preemptible=job.spec.preemptible
                            and _may_go(job, s.tasks[job_id].values()),
                        )
                    )
        return running

    async def list_reserved(
        self, ids: Sequence[str] | None = None, *, now: Now = None
    ) -> list[Reserved]:
        s, at = self.state, self.state.at(now)
        return [
            Reserved(
                job=s.job_record(i),
                seconds=(at - s.attempts[i][-1].reserved_at).total_seconds(),
                ran_before=any(
                    a.started_at is not None and a.cause not in UNSTARTED
                    for a in s.attempts[i][:-1]
                ),
            )
            for i in sorted(s.by_state[JobState.RESERVED])
            if ids is None or i in ids
        ]

    def reserve(
        self, placements: Sequence[JobPlacement], ttls: Mapping[str, float], at: datetime
    ) -> list[str]:
        """Write the placements that still hold: the job is queued under the same epoch, and its
        hosts, queue and quota have room for it. Return the ids of the reserved jobs."""
        s = self.state
        ids = {t.host_id for p in placements for t in p.tasks}
        room = RoomCheck(s.capacity(h) for h in s.hosts.values() if h.id in ids and h.takes_work)
        allotment = Allotment(
            quotas_left(
                s,
                self.environment,
                {s.jobs[p.job_id].row.project for p in placements if p.job_id in s.jobs},
            )
        )
        applied = []
        for p in placements:
            job = s.jobs.get(p.job_id)
            if (
                job is None
                or job.row.state not in sources(JOB, JobEvent.RESERVE)
                or job.row.epoch != p.epoch
            ):
                continue
            queue = s.queues.get(job.row.queue)
            if queue is not None and queue.paused_at is not None:
                continue
            gpus = job.gpus * job.row.tasks
            if p.size != job.row.tasks or not allotment.allows(job.row.project, gpus):
                continue
            if room.reserve_job(p.tasks, (job.gpus, job.cpu_slots, job.memory_bytes)):
                allotment.subtract_job(job.row.project, gpus)
                self.reserve_one(job, p, ttls[p.job_id], at)
                applied.append(p.job_id)
        return applied

    def reserve_one(
        self,
        job: MemoryJob,
        placement: JobPlacement,
        ttl: float,
        at: datetime,
        *,
        road: Literal["leader", "host"] = "leader",
    ) -> None:
        """Write one placement, which the caller has checked."""
        s = self.state
        m = s.load([job.row.id], at)
        row = m.jobs[job.row.id]
        ranks = placement.list_ranks()
        hosts = say_names((s.hosts[t.host_id].name for t in ranks), 3)
        how = ", by the host itself" if road == "host" else ""
        reason = f"reserved on {hosts}{how}"
        m.move_job(row, JobEvent.RESERVE, reason)
        row.epoch += 1
        row.attempts += 1
        row.started_at = row.step = row.total = row.beat_at = row.trigger_rank = None
        row.barred_hosts = ()
        # GANG-1: one answer brings the host the orders for all of them.
        together = len({place.host_id for place in ranks}) == 1 and not row.supervised
        for place in ranks:
            task = TaskRow(
                **shared_fields(job, TaskRow),
                **shared_fields(place, TaskRow),
                job_id=row.id,
                epoch=row.epoch,
                attempt=row.attempts,
                state=step(TASK, TaskState.BLOCKED, TaskEvent.RESERVE),
                queue=row.queue,
                lease_ttl_seconds=ttl,
                barrier=len(ranks) == 1 or together,
            )
            s.put_task(task)
            m.tasks[row.id][place.rank] = task
        attempt = AttemptRecord(
            job_id=row.id,
            number=row.attempts,
            parent=row.attempts - 1 or None,
            epoch=row.epoch,
            state=AttemptState.RESERVED,
            retry_count=row.retries_charged,
            reason=row.reason,
            host=hosts,
            host_ids=tuple(t.host_id for t in ranks),
            road=road,
            reserved_at=at,
        )
        s.attempts.setdefault(row.id, []).append(attempt)
        m.log("job.reserved", row, row.reason)
        s.commit(m)

    async def expire_reservations(
        self, reservation_seconds: float, *, now: Now = None
    ) -> list[str]:
        s, at = self.state, self.state.at(now)
        before = at - timedelta(seconds=reservation_seconds)
        m = s.load(
            [i for i in s.by_state[JobState.RESERVED] if s.attempts[i][-1].reserved_at <= before],
            at,
        )
        expired = [
            job.id for job in m.jobs.values() if requests.expire_start(m, job, reservation_seconds)
        ]
        s.commit(m)
        return expired


def _put_first(owned: list[MemoryJob], tops: Iterable[list[MemoryJob]]) -> list[MemoryJob]:
    """Return all jobs in order: the jobs of `owned` first, and no job twice."""
    first = {job.row.id for job in owned}
    return owned + sorted((j for top in tops for j in top if j.row.id not in first), key=order_of)


def order_of(job: MemoryJob) -> tuple[int, int]:
    """Return a queued job's place in the order of admission."""
    return (-job.priority, job.ord)


def _find_notice_left(job: MemoryJob, at: datetime) -> float | None:
    notice, since = job.row.drain_notice_seconds, job.row.drain_since
    if notice is None or since is None:
        return None
    return max(0.0, notice - (at - since).total_seconds())


def _may_go(job: MemoryJob, tasks: Iterable[TaskRow]) -> bool:
    """Return whether a stop would cost the job only work; a gang with finished ranks would fail
    (GANG-5)."""
    if job.row.state is not JobState.RUNNING:
        return False
    return (
        job.spec.on_partial == "restart"
        or job.spec.supervised
        or all(task.state is not TaskState.DONE for task in tasks)
    )
