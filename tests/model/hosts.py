"""Hosts in memory."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from holdfast.core.causes import Cause
from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.core.records import HostRecord, shared_fields
from holdfast.core.states import HostEvent, HostState
from holdfast.core.transitions import HOST, sources, step
from holdfast.moves import registration
from holdfast.store.clock import Now
from holdfast.wire.agent import HostFacts
from tests.model.state import InMemory, MemoryHost, MemoryState


def is_in_trouble(host: MemoryHost) -> bool:
    """Return whether a host does not simply serve."""
    fallen = host.flagged_dead_at is not None or bool(host.faults)
    return fallen or host.state is not HostState.ACTIVE


class MemoryHosts(InMemory):
    """`PostgresHosts` in the model."""

    async def register_host(
        self,
        host_id: str,
        key_hash: bytes | None,
        incarnation: str,
        facts: HostFacts,
        *,
        faults: Sequence[Hindrance] = (),
        held: Collection[TaskKey] = (),
        announced: Sequence[str] = (),
        now: Now = None,
    ) -> HostRecord:
        s, at = self.state, self.state.at(now)
        before = s.hosts.get(host_id)
        if before is None and key_hash is None:
            raise registration.no_host(host_id)
        present, known = (
            (None, ()) if before is None else (before.incarnation, before.earlier_incarnations)
        )
        earlier = registration.follow_incarnation(
            facts.name, present, known, incarnation, announced
        )
        state = registration.register_state(
            None if before is None else before.state, None, repeated=present == incarnation
        )
        others = find_namesakes(s, host_id, facts.name, at)
        known_name = None if before is None else before.name
        registration.check_name(known_name, facts, None, others)
        if before is not None and key_hash is None:
            heard = before.heartbeat_at
            silent = None if heard is None else (at - heard).total_seconds()
            registration.check_boot(host_id, before.boot_id, facts, silent)
        fresh = before is None or before.state is not state or state is HostState.PREFLIGHT
        s.hosts[host_id] = MemoryHost(
            **shared_fields(facts, MemoryHost)
            | {"queues": tuple(facts.queues), "gpus": tuple(facts.gpus)},
            id=host_id,
            key_hash=key_hash or (before.key_hash if before else None),
            state=state,
            reason=registration.register_reason(state),
            registered_at=at,
            incarnation=incarnation,
            heartbeat_at=at,
            earlier_incarnations=earlier,
            state_at=at if fresh or before is None else before.state_at,
            busy_at=None if before is None else before.busy_at,
            faults=tuple(faults),
        )
        lost = lose_host_tasks(s, host_id, "new_incarnation", at, keep=incarnation, held=held)
        told = () if before is None else before.faults
        events = registration.lost_event(host_id, facts.name, "new_incarnation", lost)
        events += registration.faults_event(host_id, facts.name, told, faults)
        if present != incarnation:
            events.append(registration.registered_event(host_id, facts.name, incarnation, state))
        s.log(events, at)
        return s.host_record(s.hosts[host_id])

    async def get_host(self, host: str) -> HostRecord:
        named = [h for _, h in sorted(self.state.hosts.items()) if host in (h.id, h.name)]
        named.sort(key=lambda h: h.registered_at, reverse=True)
        named.sort(key=lambda h: (h.id != host, h.state is HostState.TERMINATED))
        found = registration.pick_host(
            host, [(h.id, h.state is HostState.TERMINATED) for h in named]
        )
        return self.state.host_record(self.state.hosts[found])

    async def list_hosts(
        self,
        *,
        include_terminated: bool = False,
        dead: bool = False,
        trouble: bool = False,
        gpus: bool = False,
        part: str | None = None,
        limit: int | None = None,
    ) -> list[HostRecord]:
        word = (part or "").lower()
        return [
            self.state.host_record(host)
            for host in sorted(self.state.hosts.values(), key=lambda h: (h.name, h.id))
            if (include_terminated or host.state is not HostState.TERMINATED)
            and (not dead or host.flagged_dead_at is not None)
            and not (trouble and not is_in_trouble(host))
            and (not gpus or host.gpus)
            and (part is None or word in host.name.lower() or host.id.startswith(word))
        ][:limit]

    async def move_host(
        self,
        host_id: str,
        event: str,
        reason: str,
        *,
        hard: bool = False,
        deadline_seconds: float | None = None,
        scale_down: bool = False,
        now: Now = None,
    ) -> HostRecord:
        s, at = self.state, self.state.at(now)
        if host_id not in s.hosts:
            raise registration.no_host(host_id)
        host = s.hosts[host_id]
        state = registration.move_state(host.name, host.state, event)
        cause = registration.cause_of(state, scale_down=scale_down)
        set_host_state(s, host, HostEvent(event), reason, at, hard=hard, cause=cause)
        host.drain_deadline = registration.deadline_of(host.state, deadline_seconds, at)
        if host.state is HostState.TERMINATED:
            host.key_hash = None
            lost = lose_host_tasks(s, host_id, "host_gone", at)
            s.log(registration.lost_event(host_id, host.name, "host_gone", lost), at)
        elif hard or (cause is Cause.SCALED_DOWN and deadline_seconds is None):
            m = s.load([t.job_id for t in s.live_tasks(host_id)], at)
            registration.stop_work(m, host_id, host.name, cause, reason)
            s.commit(m)
        return s.host_record(host)

    async def drain_due_hosts(self, *, now: Now = None) -> dict[str, list[str]]:
        s, at, drained = self.state, self.state.at(now), {}
        for host in sorted(s.hosts.values(), key=lambda h: h.id):
            if (
                host.state is HostState.DRAINING
                and host.drain_deadline is not None
                and host.drain_deadline <= at
            ):
                host.drain_deadline = None
                m = s.load([t.job_id for t in s.live_tasks(host.id)], at)
                drained[host.id] = registration.drain_jobs_for(
                    m,
                    host.drain_cause,
                    registration.deadline_reason(host.name, host.drain_cause),
                    host.id,
                    stop=False,
                )
                s.commit(m)
        return drained

    async def sweep_dead_hosts(
        self, dead_seconds: float, leading_since: datetime, *, now: Now = None
    ) -> list[HostRecord]:
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
        s.log([registration.dead_event(record, at) for record in records], at)
        return records


def set_host_state(
    s: MemoryState,
    host: MemoryHost,
    event: HostEvent,
    reason: str,
    at: datetime,
    *,
    hard: bool = False,
    cause: Cause = Cause.HOST_DRAINED,
) -> None:
    """Apply an event to a host's state, and record the event."""
    before, host.state, host.reason = host.state, step(HOST, host.state, event), reason
    if before is not host.state:
        host.state_at = at
    host.drain_deadline, host.drain_cause = None, cause
    moved = registration.moved_event(
        host.id,
        host.name,
        before,
        host.state,
        str(event),
        reason,
        hard,
        scaled=cause is Cause.SCALED_DOWN,
    )
    s.log([moved], at)


def quarantine_host(s: MemoryState, host: MemoryHost, reason: str, at: datetime) -> None:
    """Take a host out of service on a task's evidence, where its state allows it."""
    if host.state in sources(HOST, HostEvent.QUARANTINE):
        set_host_state(s, host, HostEvent.QUARANTINE, reason, at)


def lose_host_tasks(
    s: MemoryState,
    host_id: str,
    lost: str,
    at: datetime,
    *,
    keep: str | None = None,
    held: Collection[TaskKey] = (),
) -> list[str]:
    """Free every live task of a host at once (LEASE-3), except those of incarnation `keep` and those
    in `held`. Returns the jobs' ids."""
    m = s.load([t.job_id for t in s.live_tasks(host_id) if t.incarnation != keep], at)
    freed = registration.lose_tasks_on(m, host_id, lost, keep, held)
    s.commit(m)
    return freed


def find_namesakes(
    s: MemoryState, host_id: str, name: str, at: datetime
) -> list[registration.Namesake]:
    """Return the other hosts with the same name that have not ended."""
    found = []
    for _, host in sorted(s.hosts.items()):
        if host.name == name and host.id != host_id and host.state is not HostState.TERMINATED:
            heard = host.heartbeat_at
            silent = None if heard is None else (at - heard).total_seconds()
            found.append(registration.Namesake(id=host.id, name=host.name, silent_seconds=silent))
    return found
