"""Drains in memory."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.core.endings.drain import Completion
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.placement.plan import Capacity, JobPlacement
from holdfast.core.records import JobRecord
from holdfast.core.states import HostState, JobState, TaskState
from holdfast.moves import dispatch, drains
from holdfast.moves.quotas import sets_quota
from holdfast.moves.reports import Draft
from holdfast.moves.room import RoomCheck
from holdfast.moves.values import DrainSnapshot, HostSync, Restarted, TellDrains
from holdfast.store.memory.admission import MemoryAdmission
from holdfast.store.memory.hosts import quarantine_host
from holdfast.store.memory.leases import MemoryLeases
from holdfast.store.memory.settings import read_switches
from holdfast.store.memory.state import InMemory, MemoryHost, MemoryState
from holdfast.store.port.clock import Now
from holdfast.store.port.drains import Fall, FallTaken


class MemoryDrains(InMemory):
    """`DrainStore` in memory."""

    def __init__(
        self, state: MemoryState, admission: MemoryAdmission, leases: MemoryLeases
    ) -> None:
        super().__init__(state)
        self.environment = admission.environment
        self._admission = admission
        self._leases = leases

    def watch_drains(self, tell: TellDrains) -> None:
        self.state.tell_drains = tell

    async def list_drains(self, limit: int) -> list[DrainSnapshot]:
        s, at = self.state, self.state.at(None)
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

    async def read_open_room(
        self, job_id: str, silence_seconds: float | None, *, now: Now = None
    ) -> tuple[Capacity, ...] | None:
        if self._admission.has_rivals(job_id):
            return None
        s, at = self.state, self.state.at(now)
        silence = None if silence_seconds is None else timedelta(seconds=silence_seconds)
        return tuple(
            s.capacity(host, but=job_id)
            for _, host in sorted(s.hosts.items())
            if host.takes_work and (silence is None or host.heartbeat_at >= at - silence)
        )

    async def take_fall(
        self, sync: HostSync, fall: Fall, *, rules: Sequence[OperatorRule] = (), now: Now = None
    ) -> FallTaken | None:
        s, at = self.state, self.state.at(now)
        host, queue = s.hosts.get(sync.host_id), s.queues.get(fall.queue)
        limited = any(map(sets_quota, self._admission.list_layers()))
        if host is None or queue is None or queue.paused_at is not None or limited:
            return None
        if not self._is_quiet(host, sync, fall.job_id):
            return None
        m, draft = s.load([fall.job_id], at), Draft(sync, "ok")
        job = dispatch.take_fall(m, draft, fall.job_id, fall.queue, rules)
        if job is None:
            return None
        restart = await fall.decide(dispatch.expect_drain(m, job, s.job_record(job.id)))
        if restart is None:
            return None
        placement = restart.placement
        drains.complete_drain(m, job, restart.completion)
        dispatch.dispatch_at_once(m, job, read_switches(s, self.environment))
        room = RoomCheck([s.capacity(host, but=job.id)])
        need = placement.gpus, placement.cpu_slots, placement.memory_bytes
        if job.state is not JobState.QUEUED or not room.take(placement.tasks, need):
            return None
        host.heartbeat_at, host.busy_at = max(host.heartbeat_at, at), at
        news, m.drain_news = tuple(m.drain_news), []
        s.commit(m)
        self._leases.renew(draft, at)
        poll = HostSync(host_id=sync.host_id, incarnation=sync.incarnation, live=sync.live)
        ttls = {job.id: restart.ttl_seconds}
        applied, answers = await self._leases.reserve_and_offer([placement], ttls, [poll], now=at)
        draft.offers += [offer for answer in answers for offer in answer.offers]
        draft.name, draft.reads = host.name, self._leases.is_read_from(host.id)
        synced = msgspec.structs.replace(draft.answer(), fell=True)
        return FallTaken(synced=synced, started=bool(applied), news=news)

    def _is_quiet(self, host: MemoryHost, sync: HostSync, job_id: str) -> bool:
        """Return whether there is nothing to tell of this host, and nothing to tell it."""
        same = host.incarnation == sync.incarnation and sync.faults in (None, host.faults)
        others = [t for t in self.state.live_tasks(host.id) if t.job_id != job_id]
        unheard = any(t.state is not TaskState.RUNNING for t in others)
        active = host.state is HostState.ACTIVE and host.flagged_dead_at is None
        return same and active and not unheard

    async def restart_drained(
        self,
        job_id: str,
        epoch: int,
        completion: Completion,
        placement: JobPlacement,
        ttl: float,
        polls: Sequence[HostSync],
        *,
        now: Now = None,
    ) -> Restarted | None:
        at = self.state.at(now)
        if not await self.complete_drain(job_id, epoch, completion, at_once=True, now=at):
            return None
        if any(map(sets_quota, self._admission.list_layers())):
            return Restarted(started=False)
        applied, answers = await self._leases.reserve_and_offer(
            [placement], {job_id: ttl}, polls, now=at
        )
        return Restarted(started=bool(applied), answers=tuple(answers))
