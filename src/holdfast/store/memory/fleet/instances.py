"""Machines and their hosts in memory."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.fleet.faults import HostFault
from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.records import InstanceRecord
from holdfast.core.fleet.snapshot import FleetSnapshot
from holdfast.core.records import TokenRecord, shared_fields
from holdfast.core.settings.resolve import Value
from holdfast.core.states import HostEvent, HostState, InstanceEvent, InstanceState
from holdfast.moves.fleet import rented
from holdfast.moves.registration import lost_event
from holdfast.store.memory.fleet.pools import MemoryPools, is_open
from holdfast.store.memory.fleet.snapshot import show_fleet
from holdfast.store.memory.hosts import end_instance, find_rented, lose_host_tasks, set_host_state
from holdfast.store.memory.state import MemoryHost, MemoryInstance, MemoryState, MemoryToken
from holdfast.store.port.clock import Now
from holdfast.store.port.fleet.instances import SEEN_SECONDS


class MemoryFleet(MemoryPools):
    """`FleetStore` in memory."""

    def __init__(self, state: MemoryState, environment: Mapping[str, Value]) -> None:
        super().__init__(state)
        self.environment = environment

    async def read_snapshot(
        self, *, outcome_seconds: float = 3600.0, grace_seconds: float = 60.0, now: Now = None
    ) -> FleetSnapshot:
        money = await self.read_money(now=now)
        return show_fleet(
            self.state, self.environment, money, outcome_seconds, grace_seconds, self.state.at(now)
        )

    async def intend(
        self,
        pool: str,
        offer: Offer,
        host_ids: Sequence[str],
        reason: str,
        *,
        open_machines: int | None = None,
        now: Now = None,
    ) -> list[str]:
        s, at, found = self.state, self.state.at(now), self.state.pools.get(pool)
        if found is None or found.deleted_at is not None or found.paused_at is not None:
            return []
        mine = [i for i in s.instances.values() if i.pool == pool]
        count = sum(i.state is not InstanceState.GONE for i in mine)
        if open_machines is not None and count > open_machines:
            return []
        events = []
        for host_id in host_ids:
            name = rented.name_host(pool, host_id)
            s.hosts[host_id] = MemoryHost(
                id=host_id,
                name=name,
                key_hash=None,
                pool=pool,
                state=HostState.SPAWNING,
                reason=reason,
                queues=found.spec.queues,
                labels=dict(found.spec.labels),
                cpu_slots=0,
                memory_bytes=0,
                gpus=(),
                address="",
                version="",
                probe="real",
                registered_at=at,
                incarnation="",
                heartbeat_at=at,
                state_at=at,
            )
            s.instances[host_id] = MemoryInstance(
                host_id=host_id,
                pool=pool,
                offer=offer.name,
                usd_per_hour=offer.usd_per_hour,
                reason=reason,
                intended_at=at,
            )
            events.append(rented.intended_event(host_id, name, pool, offer.name, reason))
        s.log(events, at)
        return list(host_ids)

    async def ask(
        self,
        host_id: str,
        token_id: str,
        secret_hash: bytes,
        token_seconds: float,
        *,
        now: Now = None,
    ) -> InstanceRecord | None:
        s, at, found = self.state, self.state.at(now), self.state.instances.get(host_id)
        after = None if found is None else rented.take(found.state, InstanceEvent.ASK)
        if found is None or after is None:
            return None
        record = TokenRecord(
            id=token_id,
            role="join",
            name=f"host {s.hosts[host_id].name}",
            created_at=at,
            expires_at=at + timedelta(seconds=token_seconds),
            host_id=host_id,
        )
        s.tokens[token_id] = MemoryToken(record=record, secret_hash=secret_hash)
        found.state, found.asked_at = after, at
        return _as_record(s, found)

    async def note_made(
        self, host_id: str, ref: str, *, usd_per_hour: float | None = None, now: Now = None
    ) -> InstanceRecord | None:
        s, at, found = self.state, self.state.at(now), self.state.instances.get(host_id)
        rental = find_rented(s, host_id)
        after = None if rental is None else rented.take(rental.state, InstanceEvent.MAKE)
        if found is None or rental is None or after is None:
            return None
        found.state, found.ref, found.made_at, found.seen_at = after, ref, found.made_at or at, at
        found.missing_since, found.missing_times = None, 0
        if usd_per_hour is not None:
            found.usd_per_hour = usd_per_hour
        s.troubles.pop((found.pool, found.offer), None)
        s.log([rented.made_event(rental, ref)], at)
        return _as_record(s, found)

    async def note_denied(self, host_id: str, reason: str, *, final: bool, now: Now = None) -> bool:
        s, at, rental = self.state, self.state.at(now), find_rented(self.state, host_id)
        if rental is None:
            return False
        event = InstanceEvent.DENY
        if rented.take(rental.state, event) is None:
            event = InstanceEvent.MISS
        if not self._lose(rental, event, HostFault.NO_INSTANCE_ID, reason, at, final):
            return False
        count = s.troubles.get((rental.pool, rental.offer), (0, at, ""))[0]
        s.troubles[rental.pool, rental.offer] = (count + 1, at, reason)
        return True

    async def note_listing(
        self, seen: Collection[str], missing: Collection[str], *, now: Now = None
    ) -> None:
        at = self.state.at(now)
        for i in self.state.instances.values():
            if i.state is InstanceState.GONE:
                continue
            if i.host_id in seen:
                fresh = i.seen_at and (at - i.seen_at).total_seconds() < SEEN_SECONDS
                if i.state is InstanceState.MADE and i.missing_since is None and fresh:
                    continue
                i.seen_at, i.missing_since, i.missing_times = at, None, 0
            elif i.host_id in missing:
                i.missing_since, i.missing_times = i.missing_since or at, i.missing_times + 1

    async def note_words(
        self, said: Mapping[str, str], lost: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        for host_id in (*said, *lost):
            found = self.state.instances.get(host_id)
            if found is not None and found.state is not InstanceState.GONE:
                found.said = said.get(host_id, found.said)
                found.lost = lost.get(host_id, found.lost)

    async def note_gone(
        self,
        host_id: str,
        event: InstanceEvent,
        reason: str,
        *,
        fault: HostFault = HostFault.PROVIDER_GONE,
        now: Now = None,
    ) -> bool:
        rental = find_rented(self.state, host_id)
        if rental is None:
            return False
        return self._lose(rental, event, fault, reason, self.state.at(now), True)

    async def find_silent(self, seconds: float, *, now: Now = None) -> dict[str, str]:
        s, before = self.state, self.state.at(now) - timedelta(seconds=seconds)
        made = [i for _, i in sorted(s.instances.items()) if i.state is InstanceState.MADE]
        return {
            i.host_id: i.pool
            for i in made
            if s.hosts[i.host_id].incarnation
            and s.hosts[i.host_id].heartbeat_at < before
            and s.live_tasks(i.host_id)
        }

    async def promote_host(self, host_id: str, reason: str, *, now: Now = None) -> float | None:
        s, at, rental = self.state, self.state.at(now), find_rented(self.state, host_id)
        if rental is None or rental.ends or not rented.take_host(rental.host, HostEvent.PASS):
            return None
        set_host_state(s, s.hosts[host_id], HostEvent.PASS, reason, at)
        found = s.instances[host_id]
        found.active_at = found.active_at or at
        if not rental.served:
            s.outcomes.append((at, rental.pool, rental.offer, "", ""))
        return (at - found.intended_at).total_seconds()

    async def fail_host(
        self, host_id: str, fault: HostFault, reason: str, *, now: Now = None
    ) -> bool:
        rental = find_rented(self.state, host_id)
        return rental is not None and self._fail(rental, fault, reason, self.state.at(now))

    async def drain_if_idle(
        self, host_id: str, leases: int, grace_seconds: float, reason: str, *, now: Now = None
    ) -> bool:
        s, at, rental = self.state, self.state.at(now), find_rented(self.state, host_id)
        if rental is None or rental.host is not HostState.ACTIVE:
            return False
        if len(s.live_tasks(host_id)) > leases:
            return False
        host = s.hosts[host_id]
        set_host_state(s, host, HostEvent.DRAIN, reason, at, cause=Cause.SCALED_DOWN)
        host.drain_deadline = at + timedelta(seconds=grace_seconds)
        return True

    async def want_end(
        self, host_id: str, reason: str, *, now: Now = None
    ) -> InstanceRecord | None:
        s, at, rental = self.state, self.state.at(now), find_rented(self.state, host_id)
        if rental is None:
            return None
        if end_instance(s, host_id, reason, at) is InstanceState.GONE:
            self._terminate(rental, reason, at)
        return _as_record(s, s.instances[host_id])

    async def note_end_asked(self, host_id: str, *, now: Now = None) -> None:
        if host_id in self.state.instances:
            self.state.instances[host_id].end_asked_at = self.state.at(now)

    async def free_host(self, host_id: str, reason: str, *, now: Now = None) -> list[str] | None:
        rental = find_rented(self.state, host_id)
        if rental is None:
            return None
        if rental.state is not InstanceState.GONE and self.state.live_tasks(host_id):
            return None
        return self._terminate(rental, reason, self.state.at(now))

    async def list_instances(
        self,
        pool: str | None = None,
        *,
        states: Collection[InstanceState] | None = None,
        include_gone: bool = False,
    ) -> list[InstanceRecord]:
        s = self.state
        found = [
            _as_record(s, i)
            for i in s.instances.values()
            if pool in (None, i.pool)
            and (states is None or i.state in states)
            and (include_gone or is_open(s, i))
        ]
        return sorted(found, key=lambda i: (i.intended_at, i.host_id))

    async def find_instances(self, host_ids: Collection[str]) -> Mapping[str, InstanceRecord]:
        s = self.state
        return {i: _as_record(s, s.instances[i]) for i in sorted(host_ids) if i in s.instances}

    async def prune_fleet(self, days: float, *, now: Now = None) -> int:
        s, before = self.state, self.state.at(now) - timedelta(days=days)
        old = [
            i.host_id
            for i in s.instances.values()
            if i.gone_at is not None and i.gone_at < before and not is_open(s, i)
        ]
        for host_id in old:
            del s.instances[host_id], s.hosts[host_id]
            s.tokens = {k: t for k, t in s.tokens.items() if t.record.host_id != host_id}
        kept = [found for found in s.outcomes if found[0] >= before]
        dropped, s.outcomes = len(s.outcomes) - len(kept), kept
        return len(old) + dropped

    def _lose(
        self,
        rental: rented.RentedHost,
        event: InstanceEvent,
        fault: HostFault,
        reason: str,
        at: datetime,
        counts: bool,
    ) -> bool:
        s, after = self.state, rented.take(rental.state, event)
        if after is None:
            return False
        found = s.instances[rental.host_id]
        found.state, found.gone_at, found.reason = after, at, reason
        s.log([rented.ended_event(rental, event, reason)], at)
        if rented.gone_event(rental, event) is HostEvent.TERMINATE:
            self._terminate(msgspec.structs.replace(rental, fault=str(fault)), reason, at)
        else:
            self._fail(rental, fault, reason, at, counts=counts)
        return True

    def _fail(
        self,
        rental: rented.RentedHost,
        fault: HostFault,
        reason: str,
        at: datetime,
        *,
        counts: bool = True,
    ) -> bool:
        s = self.state
        if rented.take_host(rental.host, HostEvent.FAIL) is None:
            return False
        set_host_state(s, s.hosts[rental.host_id], HostEvent.FAIL, reason, at)
        s.instances[rental.host_id].fault = str(fault)
        s.log([rented.failed_event(rental, rental.host, str(fault), reason)], at)
        if counts and rented.is_spawn_fault(rental, fault):
            s.outcomes.append((at, rental.pool, rental.offer, str(fault), reason))
        return True

    def _terminate(self, rental: rented.RentedHost, reason: str, at: datetime) -> list[str] | None:
        s = self.state
        if rented.take_host(rental.host, HostEvent.TERMINATE) is None:
            return None
        set_host_state(s, s.hosts[rental.host_id], HostEvent.TERMINATE, reason, at)
        s.hosts[rental.host_id].key_hash = None
        why = rented.lost_word(rental, reason)
        lost = lose_host_tasks(s, rental.host_id, why, at)
        s.log(lost_event(rental.host_id, rental.name, why, lost), at)
        return lost


def _as_record(s: MemoryState, found: MemoryInstance) -> InstanceRecord:
    host = s.hosts[found.host_id]
    fields = shared_fields(found, InstanceRecord)
    heard = host.heartbeat_at if host.incarnation else None
    return InstanceRecord(**fields, name=host.name, host_state=host.state, heartbeat_at=heard)
