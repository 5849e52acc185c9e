"""Syncs and leases in memory."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from holdfast.core.causes import Cause
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import JobPlacement
from holdfast.core.placement.takes import TakeTerms
from holdfast.core.records import shared_fields
from holdfast.core.states import HostEvent, HostState, TaskState
from holdfast.moves.jobs import members, moves, reports, requests
from holdfast.moves.jobs.reports import AnswerBuilder
from holdfast.moves.registration import faults_event, is_unheard, lost_event
from holdfast.moves.rows import TaskRow
from holdfast.moves.values import (
    ClaimRow,
    GangSeat,
    HostSync,
    HostSynced,
    OfferedJob,
    OfferedTask,
    TaskOffer,
)
from holdfast.store.clock import Now
from tests.model.hosts import lose_host_tasks, quarantine_host, set_host_state
from tests.model.jobs.admission import MemoryAdmission
from tests.model.jobs.takes import take_jobs
from tests.model.state import InMemory, MemoryState


class MemoryLeases(InMemory):
    """`PostgresLeases` in the model."""

    def __init__(self, state: MemoryState, admission: MemoryAdmission) -> None:
        super().__init__(state)
        self._admission = admission

    async def sync_hosts(
        self,
        syncs: Sequence[HostSync],
        *,
        rules: Sequence[OperatorRule] = (),
        terms: TakeTerms | None = None,
        now: Now = None,
    ) -> list[HostSynced]:
        at = self.state.at(now)
        answers: list[HostSynced | None] = [None] * len(syncs)
        for group in reports.group_syncs(syncs):
            builders = [AnswerBuilder(syncs[i], self._status(syncs[i])) for i in group]
            fresh = [d for d in builders if d.status == "ok"]
            self._sync(fresh, rules, at)
            if terms is not None:
                self._take(fresh, terms, at)
            for i, builder in zip(group, builders, strict=True):
                answers[i] = builder.answer()
        return [answer for answer in answers if answer is not None]

    def _status(self, sync: HostSync) -> str:
        host = self.state.hosts.get(sync.host_id)
        if host is None:
            return "unknown"
        gone = host.key_hash is None or (host.state is HostState.TERMINATED and not sync.leaving)
        return "stale" if host.incarnation != sync.incarnation or gone else "ok"

    def _sync(
        self, builders: Sequence[AnswerBuilder], rules: Sequence[OperatorRule], at: datetime
    ) -> None:
        s = self.state
        for d in builders:
            host = s.hosts[d.sync.host_id]
            d.name = host.name
            if host.flagged_dead_at is not None:
                s.log([reports.recovered_event(host.id, host.name, host.heartbeat_at, at)], at)
            host.heartbeat_at, host.flagged_dead_at = max(host.heartbeat_at, at), None
            if d.sync.live or d.sync.claimed or d.sync.ended:
                host.busy_at = at
            d.fenced = host.reason if host.state is HostState.ERROR else ""
            if d.sync.faults is not None:
                s.log(faults_event(host.id, host.name, host.faults, d.sync.faults), at)
                host.faults = d.sync.faults
        ids = {key.job_id for d in builders for key, _ in d.ended()} | {
            key.job_id for d in builders for key in (*d.started(), *d.claimed())
        }
        m = s.load(ids, at)
        repeats = reports.apply_reports(m, builders, set(), rules)
        s.commit(m)
        for d, key in repeats:
            if self._ended_here(d.sync.host_id, key):
                d.acked.append(key)
            else:
                d.miss(key, d.refused)
        for d in builders:
            stuck = reports.find_stuck(d)
            if stuck is not None:
                quarantine_host(s, s.hosts[d.sync.host_id], stuck, at)
        for d in builders:
            if not d.fenced:
                self.renew(d, at)
        for d in builders:
            host = s.hosts[d.sync.host_id]
            if d.sync.leaving and host.state is not HostState.TERMINATED:
                if is_unheard(s.load([t.job_id for t in s.live_tasks(host.id)], at), d.sync):
                    continue
                set_host_state(s, host, HostEvent.TERMINATE, "its agent left", at)
                lost = lose_host_tasks(s, host.id, "host_gone", at)
                s.log(lost_event(host.id, host.name, "host_gone", lost), at)
                d.draining.extend(lost)
        for d in builders:
            if not d.sync.leaving:
                self._give_orders(d, at)

    def _take(self, builders: Sequence[AnswerBuilder], terms: TakeTerms, at: datetime) -> None:
        takers = [d for d in builders if d.sync.takes and not d.sync.leaving and not d.fenced]
        for d, job_id in take_jobs(self.state, self._admission, takers, terms, at):
            task = self.state.tasks[job_id][0]
            _grant(task, at)
            self._offer(d, task, saved=True)

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

    def renew(self, d: AnswerBuilder, at: datetime) -> None:
        """Renew the leases of live tasks; a task whose lease cannot be renewed is lost
        (FENCE-1)."""
        for key in d.live():
            task = self.state.task_for(key)
            if task is None or not d.speaks_for(task, key) or not task.state.holds_lease:
                d.miss(key, d.lost)
                continue
            _grant(task, at)
            d.renewed.append((key, task.lease_ttl_seconds))
            reports.note_beat(task, d.beats().get(key), at)

    def _give_orders(self, d: AnswerBuilder, at: datetime) -> None:
        s, live = self.state, set(d.begun())
        for task in s.live_tasks(d.sync.host_id):
            if task.incarnation != d.sync.incarnation:
                continue
            if (
                task.state is TaskState.RESERVED
                and task.key not in live
                and (task.barrier or task.key not in d.claimed())
                and not d.fenced
            ):
                _grant(task, at)
                self._offer(d, task, saved=False)
            if task.state is TaskState.PREEMPTING:
                row = s.jobs[task.job_id].row
                alone = row.drain_cause is None  # one member of a supervised job, stopped by itself
                d.preempts.append(
                    reports.order_preempt(
                        task.key,
                        cause=row.drain_cause or task.stop_cause or Cause.UNKNOWN,
                        reason=(task.stop_reason if alone else row.drain_reason) or "",
                        hard=task.stop_hard if alone else row.drain_hard,
                        operator_stop=row.drain_operator_stop,
                        trigger_rank=None if alone else row.trigger_rank,
                        notice_seconds=row.drain_notice_seconds,
                    )
                )

    def _offer(self, d: AnswerBuilder, task: TaskRow, *, saved: bool) -> None:
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
                task=OfferedTask(
                    key=task.key,
                    attempt=task.attempt,
                    host_id=task.host_id or "",
                    devices=tuple(task.devices),
                    lease_ttl_seconds=task.lease_ttl_seconds,
                    replaced=task.replaced,
                ),
                job=OfferedJob(**shared_fields(s.job_record(task.job_id), OfferedJob)),
                secrets={},
                seats=seats if job.row.tasks > 1 else (),
                saved=saved,
            )
        )

    async def lapse_leases(self, leading_since: datetime, *, now: Now = None) -> list[str]:
        live = [i for state in moves.LIVE_JOB_STATES for i in self.state.by_state[state]]
        m = self.state.load(live, self.state.at(now))
        lapsed = requests.lapse(m, leading_since, {})
        self.state.commit(m)
        return lapsed

    async def reserve_and_offer(
        self,
        placements: Sequence[JobPlacement],
        ttls: Mapping[str, float],
        polls: Sequence[HostSync],
        *,
        now: Now = None,
    ) -> tuple[list[str], list[HostSynced]]:
        at = self.state.at(now)
        applied = self._admission.reserve(placements, ttls, at)
        here = {task.host_id for placement in placements for task in placement.tasks}
        builders = [AnswerBuilder(p, "ok") for p in polls if p.host_id in here and applied]
        for d in builders:
            self._give_orders(d, at)
        return applied, [d.offer() for d in builders if d.offers or d.claims]


def _grant(task: TaskRow, at: datetime) -> None:
    until = at + timedelta(seconds=task.lease_ttl_seconds)
    task.lease_until = until if task.lease_until is None else max(task.lease_until, until)
    task.offered_at = task.offered_at or at
