"""Hosts, syncs, leases and drains in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.endings.drain import Completion
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import Size
from holdfast.core.records import HostRecord, JobRecord
from holdfast.core.states import HostEvent, HostState, JobState, TaskState
from holdfast.core.transitions import HOST, sources, step
from holdfast.moves import drains, members, moves, requests
from holdfast.moves.registration import (
    cause_of,
    dead_event,
    deadline_of,
    deadline_reason,
    drain_jobs_for,
    follow_incarnation,
    lose_tasks_on,
    lost_event,
    move_state,
    moved_event,
    no_host,
    register_reason,
    register_state,
    stop_work,
)
from holdfast.moves.reports import (
    Draft,
    apply_reports,
    find_stuck,
    group_syncs,
    note_beat,
    order_preempt,
    recovered_event,
)
from holdfast.moves.rows import NewEvent, TaskRow
from holdfast.moves.values import ClaimRow, GangSeat
from holdfast.store.memory.state import MemoryHost, MemoryState
from holdfast.store.port.store import DrainSnapshot, HostSync, HostSynced, LiveTask, TaskOffer
from holdfast.wire.agent import HostFacts


class MemoryHosts:
    """Hosts, what they report, and what silence means."""

    state: MemoryState

    async def register_host(
        self,
        host_id: str,
        key_hash: bytes | None,
        incarnation: str,
        facts: HostFacts,
        *,
        now: datetime | None = None,
    ) -> HostRecord:
        """See `Store.register_host`."""
        s, at = self.state, self.state.at(now)
        before = s.hosts.get(host_id)
        if before is None and key_hash is None:
            raise no_host(host_id)
        present, known = (
            (None, ()) if before is None else (before.incarnation, before.earlier_incarnations)
        )
        earlier = follow_incarnation(facts.name, present, known, incarnation)
        state = register_state(None if before is None else before.state)
        s.hosts[host_id] = MemoryHost(
            id=host_id,
            name=facts.name,
            key_hash=key_hash or (before.key_hash if before else None),
            pool=facts.pool,
            state=state,
            reason=register_reason(state),
            queues=tuple(facts.queues),
            labels=dict(facts.labels),
            cpu_slots=facts.cpu_slots,
            memory_bytes=facts.memory_bytes,
            gpus=tuple(facts.gpus),
            address=facts.address,
            version=facts.version,
            probe=facts.probe,
            registered_at=at,
            incarnation=incarnation,
            heartbeat_at=at,
            earlier_incarnations=earlier,
        )
        if before is None or before.incarnation != incarnation:
            lost = self._lose(host_id, "new_incarnation", at, keep=incarnation)
            event = NewEvent(
                kind="host.registered",
                host_id=host_id,
                message=f"host {facts.name} registered",
                data={"name": facts.name, "incarnation": incarnation, "state": str(state)},
            )
            s.log([*lost_event(host_id, facts.name, "new_incarnation", lost), event], at)
        return s.host_record(s.hosts[host_id])

    def _lose(self, host_id: str, lost: str, at: datetime, *, keep: str | None = None) -> list[str]:
        m = self.state.load(
            [t.job_id for t in self.state.live_tasks(host_id) if t.incarnation != keep], at
        )
        freed = lose_tasks_on(m, host_id, lost, keep)
        self.state.commit(m)
        return freed

    async def find_host_by_key(self, key_hash: bytes) -> HostRecord | None:
        """See `Store.find_host_by_key`."""
        for host in self.state.hosts.values():
            if host.key_hash == key_hash:
                return self.state.host_record(host)
        return None

    async def get_host(self, host: str) -> HostRecord:
        """See `Store.get_host`."""
        if host in self.state.hosts:
            return self.state.host_record(self.state.hosts[host])
        named = [h for _, h in sorted(self.state.hosts.items()) if h.name == host]
        if not named:
            raise no_host(host)
        named.sort(key=lambda h: h.registered_at, reverse=True)
        return self.state.host_record(min(named, key=lambda h: h.state is HostState.TERMINATED))

    async def list_hosts(
        self, *, include_terminated: bool = False, dead: bool = False
    ) -> list[HostRecord]:
        """See `Store.list_hosts`."""
        return [
            self.state.host_record(host)
            for host in sorted(self.state.hosts.values(), key=lambda h: (h.name, h.id))
            if (include_terminated or host.state is not HostState.TERMINATED)
            and (not dead or host.flagged_dead_at is not None)
        ]

    async def host_sizes(self) -> list[Size]:
        """See `Store.host_sizes`."""
        return [
            Size(
                name=h.name,
                queues=frozenset(h.queues),
                cpu_slots=h.cpu_slots,
                memory_bytes=h.memory_bytes,
                gpus=h.gpus,
            )
            for _, h in sorted(self.state.hosts.items())
            if h.state is not HostState.TERMINATED
        ]

    async def move_host(
        self,
        host_id: str,
        event: str,
        reason: str,
        *,
        hard: bool = False,
        deadline_seconds: float | None = None,
        scale_down: bool = False,
        now: datetime | None = None,
    ) -> HostRecord:
        """See `Store.move_host`."""
        s, at = self.state, self.state.at(now)
        if host_id not in s.hosts:
            raise no_host(host_id)
        host = s.hosts[host_id]
        state = move_state(host.name, host.state, event)
        cause = cause_of(state, scale_down=scale_down)
        self._move(host, state, event, reason, at, hard=hard, cause=cause)
        host.drain_deadline = deadline_of(host.state, deadline_seconds, at)
        if host.state is HostState.TERMINATED:
            lost = self._lose(host_id, "host_gone", at)
            s.log(lost_event(host_id, host.name, "host_gone", lost), at)
        elif hard or (cause is Cause.SCALED_DOWN and deadline_seconds is None):
            m = s.load([t.job_id for t in s.live_tasks(host_id)], at)
            stop_work(m, host_id, host.name, cause, reason)
            s.commit(m)
        return s.host_record(host)

    def _move(
        self,
        host: MemoryHost,
        after: HostState,
        event: str,
        reason: str,
        at: datetime,
        *,
        hard: bool = False,
        cause: Cause = Cause.HOST_DRAINED,
    ) -> None:
        before, host.state, host.reason = host.state, after, reason
        host.drain_deadline, host.drain_cause = None, cause
        scaled = cause is Cause.SCALED_DOWN
        self.state.log(
            [moved_event(host.id, host.name, before, after, event, reason, hard, scaled=scaled)], at
        )

    async def drain_due_hosts(self, *, now: datetime | None = None) -> dict[str, list[str]]:
        """See `Store.drain_due_hosts`."""
        s, at, drained = self.state, self.state.at(now), {}
        for host in sorted(s.hosts.values(), key=lambda h: h.id):
            if (
                host.state is HostState.DRAINING
                and host.drain_deadline is not None
                and host.drain_deadline <= at
            ):
                host.drain_deadline = None
                m = s.load([t.job_id for t in s.live_tasks(host.id)], at)
                drained[host.id] = drain_jobs_for(
                    m,
                    host.drain_cause,
                    deadline_reason(host.name, host.drain_cause),
                    host.id,
                    stop=False,
                )
                s.commit(m)
        return drained

    async def sync_hosts(
        self,
        syncs: Sequence[HostSync],
        *,
        rules: Sequence[OperatorRule] = (),
        now: datetime | None = None,
    ) -> list[HostSynced]:
        """See `Store.sync_hosts`."""
        at = self.state.at(now)
        answers: list[HostSynced | None] = [None] * len(syncs)
        for group in group_syncs(syncs):
            drafts = [Draft(syncs[i], self._status(syncs[i])) for i in group]
            self._sync([d for d in drafts if d.status == "ok"], rules, at)
            for i, draft in zip(group, drafts, strict=True):
                answers[i] = draft.answer()
        return [answer for answer in answers if answer is not None]

    def _status(self, sync: HostSync) -> str:
        host = self.state.hosts.get(sync.host_id)
        if host is None:
            return "unknown"
        gone = host.state is HostState.TERMINATED and not sync.leaving
        return "stale" if host.incarnation != sync.incarnation or gone else "ok"

    def _sync(self, drafts: Sequence[Draft], rules: Sequence[OperatorRule], at: datetime) -> None:
        s = self.state
        for d in drafts:
            host = s.hosts[d.sync.host_id]
            d.name = host.name
            if host.flagged_dead_at is not None:
                s.log([recovered_event(host.id, host.name, host.heartbeat_at, at)], at)
            host.heartbeat_at, host.flagged_dead_at = max(host.heartbeat_at, at), None
        ids = {key.job_id for d in drafts for key, _ in d.ended()} | {
            key.job_id for d in drafts for key in (*d.started(), *d.claimed())
        }
        m = s.load(ids, at)
        repeats = apply_reports(m, drafts, set(), rules)
        s.commit(m)
        for d, key in repeats:
            (d.acked if self._ended_here(d.sync.host_id, key) else d.refused).append(key)
        for d in drafts:
            host, stuck = s.hosts[d.sync.host_id], find_stuck(d)
            if stuck is not None and host.state in sources(HOST, HostEvent.QUARANTINE):
                self._move(
                    host, step(HOST, host.state, HostEvent.QUARANTINE), "quarantine", stuck, at
                )
        for d in drafts:
            self._renew(d, at)
        for d in drafts:
            host = s.hosts[d.sync.host_id]
            if d.sync.leaving and host.state is not HostState.TERMINATED:
                self._move(
                    host,
                    step(HOST, host.state, HostEvent.TERMINATE),
                    "terminate",
                    "its agent left",
                    at,
                )
                lost = self._lose(host.id, "host_gone", at)
                s.log(lost_event(host.id, host.name, "host_gone", lost), at)
                d.draining.extend(lost)
        for d in drafts:
            if not d.sync.leaving:
                self._give_orders(d, at)

    def _ended_here(self, host_id: str, key: TaskKey) -> bool:
        for attempt in self.state.attempts.get(key.job_id, []):
            if (
                attempt.epoch == key.epoch
                and attempt.ended_at is not None
                and key.rank < len(attempt.host_ids)
            ):
                facts = [x.facts for x in attempt.members if x.rank == key.rank]
                told = bool(facts) and facts[0] is not None and facts[0].lost is None
                return told and attempt.host_ids[key.rank] == host_id
        return False

    def _renew(self, d: Draft, at: datetime) -> None:
        for key in d.live():
            task = self.state.task_for(key)
            if task is None or not d.speaks_for(task, key) or not task.state.holds_lease:
                d.lost.append(key)
                continue
            _grant(task, at)
            d.renewed.append((key, task.lease_ttl_seconds))
            note_beat(task, d.beats().get(key), at)

    def _give_orders(self, d: Draft, at: datetime) -> None:
        s, live = self.state, set(d.live()) - set(d.claimed())
        for task in s.live_tasks(d.sync.host_id):
            if task.incarnation != d.sync.incarnation:
                continue
            if (
                task.state is TaskState.RESERVED
                and task.key not in live
                and (task.barrier or task.key not in d.claimed())
            ):
                _grant(task, at)
                self._offer(d, task)
            elif task.state is TaskState.PREEMPTING:
                row = s.jobs[task.job_id].row
                alone = row.drain_cause is None  # one member of a supervised job, stopped by itself
                d.preempts.append(
                    order_preempt(
                        task.key,
                        cause=row.drain_cause or task.stop_cause or Cause.UNKNOWN,
                        reason=(task.stop_reason if alone else row.drain_reason) or "",
                        hard=task.stop_hard if alone else row.drain_hard,
                        operator_stop=row.drain_operator_stop,
                        trigger_rank=None if alone else row.trigger_rank,
                    )
                )

    def _offer(self, d: Draft, task: TaskRow) -> None:
        if not task.barrier:
            d.claims.append(
                ClaimRow(
                    key=task.key, attempt=task.attempt, lease_ttl_seconds=task.lease_ttl_seconds
                )
            )
            return
        s, job = self.state, self.state.jobs[task.job_id]
        seats = tuple(
            GangSeat(
                rank=t.rank,
                host_id=t.host_id or "",
                host_name=s.hosts[t.host_id or ""].name,
                address=s.hosts[t.host_id or ""].address,
                devices=tuple(t.devices),
                port=t.port,
            )
            for _, t in sorted(s.tasks[task.job_id].items())
            if t.host_id is not None and t.state not in members.FALLEN
        )
        d.offers.append(
            TaskOffer(
                task=s.task_record(task),
                job=s.job_record(task.job_id),
                secrets=dict(job.secrets),
                seats=seats if job.row.tasks > 1 else (),
            )
        )

    async def lapse_leases(
        self, leading_since: datetime, *, now: datetime | None = None
    ) -> list[str]:
        """See `Store.lapse_leases`."""
        live = [i for state in moves.LIVE_JOB_STATES for i in self.state.by_state[state]]
        m = self.state.load(live, self.state.at(now))
        lapsed = requests.lapse(m, leading_since)
        self.state.commit(m)
        return lapsed

    async def settle_clock(self, *, now: datetime | None = None) -> None:
        """See `Store.settle_clock`."""
        s, at = self.state, self.state.at(now)
        for host in s.hosts.values():
            host.heartbeat_at = min(host.heartbeat_at, at)
        for state in moves.LIVE_JOB_STATES:
            for job_id in s.by_state[state]:
                row, attempts = s.jobs[job_id].row, s.attempts[job_id]
                attempts[-1] = msgspec.structs.replace(
                    attempts[-1], reserved_at=min(attempts[-1].reserved_at, at)
                )
                row.drain_since = min(row.drain_since, at) if row.drain_since is not None else None
                for task in s.tasks[job_id].values():
                    latest = at + timedelta(seconds=task.lease_ttl_seconds)
                    task.lease_until = (
                        min(task.lease_until, latest) if task.lease_until is not None else None
                    )

    async def sweep_dead_hosts(
        self, dead_seconds: float, leading_since: datetime, *, now: datetime | None = None
    ) -> list[HostRecord]:
        """See `Store.sweep_dead_hosts`."""
        s, at = self.state, self.state.at(now)
        if leading_since + timedelta(seconds=dead_seconds) >= at:
            return []
        flagged = []
        for host in s.hosts.values():
            silent = host.heartbeat_at < at - timedelta(seconds=dead_seconds)
            if host.flagged_dead_at is None and silent and s.live_tasks(host.id):
                host.flagged_dead_at = at
                flagged.append(host)
        records = [s.host_record(host) for host in sorted(flagged, key=lambda h: (h.name, h.id))]
        s.log([dead_event(record, at) for record in records], at)
        return records

    async def list_live_tasks(self, host_id: str) -> list[LiveTask]:
        """See `Store.list_live_tasks`."""
        return [
            LiveTask(key=t.key, queue=t.queue, spec=self.state.jobs[t.job_id].spec)
            for t in self.state.live_tasks(host_id)
        ]

    # ---- drains

    async def list_drains(self, limit: int) -> list[DrainSnapshot]:
        """See `Store.list_drains`."""
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
        """See `Store.list_slow_drains`."""
        s = self.state
        return [
            s.job_record(i)
            for i in sorted(s.by_state[JobState.DRAINING])
            if not s.jobs[i].row.drain_hard
            and (s.jobs[i].row.drain_since or before) <= before
            and any(t.state is TaskState.PREEMPTING for t in s.tasks.get(i, {}).values())
        ]

    async def force_drain(self, job_id: str, epoch: int, *, now: datetime | None = None) -> int:
        """See `Store.force_drain`."""
        m = self.state.load([job_id], self.state.at(now))
        job = m.jobs.get(job_id)
        if job is None or job.state is not JobState.DRAINING or job.epoch != epoch:
            return 0
        forced = drains.force_drain(m, job)
        self.state.commit(m)
        return forced

    async def complete_drain(
        self, job_id: str, epoch: int, completion: Completion, *, now: datetime | None = None
    ) -> bool:
        """See `Store.complete_drain`."""
        s, at = self.state, self.state.at(now)
        m = s.load([job_id], at)
        job = m.jobs.get(job_id)
        if job is None or job.state is not JobState.DRAINING or job.epoch != epoch:
            return False
        if any(task.state.holds_lease for task in m.ranks(job)):
            return False
        quarantined = drains.complete_drain(m, job, completion)
        s.commit(m)
        host = s.hosts.get(quarantined or "")
        if host is not None and host.state in sources(HOST, HostEvent.QUARANTINE):
            after = step(HOST, host.state, HostEvent.QUARANTINE)
            self._move(host, after, "quarantine", completion.decision.reason, at)
        return True


def _grant(task: TaskRow, at: datetime) -> None:
    until = at + timedelta(seconds=task.lease_ttl_seconds)
    task.lease_until = until if task.lease_until is None else max(task.lease_until, until)
    task.offered_at = task.offered_at or at
