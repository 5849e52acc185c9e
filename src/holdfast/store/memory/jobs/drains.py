"""Drains in memory."""

from datetime import datetime

from holdfast.core.endings.drain import Completion
from holdfast.core.records import JobRecord
from holdfast.core.states import JobState, TaskState
from holdfast.moves.jobs import dispatch, drains
from holdfast.moves.values import DrainSnapshot
from holdfast.store.memory.hosts import quarantine_host
from holdfast.store.memory.jobs.admission import MemoryAdmission
from holdfast.store.memory.settings import read_switches
from holdfast.store.memory.state import InMemory, MemoryState
from holdfast.store.port.clock import Now
from holdfast.store.port.store import DrainStore


class MemoryDrains(InMemory, DrainStore):
    """`DrainStore` in the model."""

    def __init__(self, state: MemoryState, admission: MemoryAdmission) -> None:
        super().__init__(state)
        self.environment = admission.environment

    async def list_drains(self, limit: int, *, now: Now = None) -> list[DrainSnapshot]:
        s, at = self.state, self.state.at(now)
        ready = [
            i
            for i in s.by_state[JobState.DRAINING]
            if not any(t.state.holds_lease for t in s.tasks.get(i, {}).values())
        ]
        ready.sort(key=lambda i: (s.jobs[i].row.drain_since, i))
        return [
            DrainSnapshot(
                job=s.job_record(i),
                tasks=tuple(s.task_record(t) for _, t in sorted(s.tasks[i].items())),
                seconds=max(0.0, (at - (s.jobs[i].row.drain_since or at)).total_seconds()),
            )
            for i in ready[:limit]
        ]

    async def list_slow_drains(self, before: datetime) -> list[JobRecord]:
        s = self.state
        return [
            s.job_record(i)
            for i in sorted(s.by_state[JobState.DRAINING])
            if not s.jobs[i].row.drain_hard
            and (s.jobs[i].row.drain_since or before) <= before
            and any(t.state is TaskState.PREEMPTING for t in s.tasks.get(i, {}).values())
        ]

    async def force_drain(self, job_id: str, epoch: int, *, now: Now = None) -> int:
        m = self.state.load([job_id], self.state.at(now))
        job = m.jobs.get(job_id)
        if job is None or job.state is not JobState.DRAINING or job.epoch != epoch:
            return 0
        forced = drains.force_drain(m, job)
        self.state.commit(m)
        return forced

    async def complete_drain(
        self,
        job_id: str,
        epoch: int,
        completion: Completion,
        *,
        at_once: bool = False,
        now: Now = None,
    ) -> bool:
        s, at = self.state, self.state.at(now)
        m = s.load([job_id], at)
        job = m.jobs.get(job_id)
        if job is None or job.state is not JobState.DRAINING or job.epoch != epoch:
            return False
        if any(task.state.holds_lease for task in m.ranks(job)):
            return False
        quarantined = drains.complete_drain(m, job, completion)
        if at_once:
            dispatch.dispatch_at_once(m, job, read_switches(s, self.environment))
        s.commit(m)
        host = s.hosts.get(quarantined or "")
        if host is not None:
            quarantine_host(s, host, completion.decision.reason, at)
        return True
