"""Drains in memory."""

from datetime import datetime, timedelta

from holdfast.core.endings.drain import Completion
from holdfast.core.facts import LAPSED
from holdfast.core.records import JobRecord
from holdfast.core.states import JobState, TaskState
from holdfast.moves.jobs import dispatch, drains
from holdfast.moves.rows import TaskRow
from holdfast.moves.values import DrainSnapshot
from holdfast.store.clock import Now
from tests.model.hosts import quarantine_host
from tests.model.jobs.admission import MemoryAdmission
from tests.model.settings import read_switches
from tests.model.state import InMemory, MemoryState


class MemoryDrains(InMemory):
    """`PostgresDrains` in the model."""

    def __init__(self, state: MemoryState, admission: MemoryAdmission) -> None:
        super().__init__(state)
        self.environment = admission.environment

    async def list_drains(
        self, limit: int, *, late_seconds: float = 0.0, now: Now = None
    ) -> list[DrainSnapshot]:
        s, at = self.state, self.state.at(now)
        since = at - timedelta(seconds=late_seconds)
        ready = [
            i
            for i in s.by_state[JobState.DRAINING]
            if not any(
                t.state.holds_lease or (late_seconds and self._may_be_late(t, since))
                for t in s.tasks.get(i, {}).values()
            )
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

    def _may_be_late(self, task: TaskRow, since: datetime) -> bool:
        host = self.state.hosts.get(task.host_id or "")
        lapsed = task.facts is not None and task.facts.lost == LAPSED
        heard = host is not None and host.flagged_dead_at is None
        return lapsed and heard and task.ended_at is not None and task.ended_at > since

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
