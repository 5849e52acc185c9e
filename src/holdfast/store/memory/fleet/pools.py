"""Pools of the in-memory store, which tests and simulations use."""

from datetime import timedelta

import msgspec

from holdfast.core.fleet.actions import CycleSummary
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.records import PoolMoney, PoolRecord
from holdfast.core.states import HostState, InstanceState
from holdfast.moves.fleet import pools as moves
from holdfast.store.memory.state import MemoryInstance, MemoryState
from holdfast.store.port.clock import Now

replace = msgspec.structs.replace


class MemoryPools:
    """`PoolStore` in memory."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state

    async def installation(self) -> str:
        return self.state.installation

    async def put_pool(self, spec: PoolSpec, *, now: Now = None) -> PoolRecord:
        s, at = self.state, self.state.at(now)
        before = s.pools.get(spec.name)
        if before is not None and before.deleted_at is not None:
            raise moves.pool_is_going(spec.name)
        if before is None:
            s.pools[spec.name] = PoolRecord(name=spec.name, spec=spec, created_at=at)
            text = f"pool {spec.name} was made"
            s.log([moves.pool_event("created", spec.name, text)], at)
        elif before.spec != spec:
            changes = moves.changed_fields(before.spec, spec)
            s.pools[spec.name] = replace(before, spec=spec)
            text = f"pool {spec.name} was changed: {', '.join(changes)}"
            s.log([moves.pool_event("changed", spec.name, text, changes=changes)], at)
        return s.pools[spec.name]

    async def get_pool(self, name: str) -> PoolRecord:
        if name not in self.state.pools:
            raise moves.no_pool(name)
        return self.state.pools[name]

    async def list_pools(self) -> list[PoolRecord]:
        return [pool for _, pool in sorted(self.state.pools.items())]

    async def pause_pool(self, name: str, reason: str, *, now: Now = None) -> PoolRecord:
        pool, at = await self.get_pool(name), self.state.at(now)
        pool = replace(pool, paused_at=pool.paused_at or at, paused_reason=reason)
        self.state.pools[name] = pool
        text = f"pool {name} is paused: {reason}"
        self.state.log([moves.pool_event("paused", name, text, reason=reason)], at)
        return pool

    async def resume_pool(self, name: str, *, now: Now = None) -> PoolRecord:
        pool = await self.get_pool(name)
        if pool.paused_at is not None:
            pool = self.state.pools[name] = replace(pool, paused_at=None, paused_reason="")
            event = moves.pool_event("resumed", name, f"pool {name} scales again")
            self.state.log([event], self.state.at(now))
        return pool

    async def delete_pool(self, name: str, *, now: Now = None) -> PoolRecord:
        pool, at = await self.get_pool(name), self.state.at(now)
        if pool.deleted_at is None:
            pool = self.state.pools[name] = replace(pool, deleted_at=at)
            text = f"pool {name} is deleted; its hosts go as they fall idle"
            self.state.log([moves.pool_event("deleted", name, text)], at)
        return pool

    async def note_throttled(
        self, name: str, seconds: float, reason: str, *, now: Now = None
    ) -> None:
        pool = self.state.pools.get(name)
        if pool is not None:
            until = self.state.at(now) + timedelta(seconds=seconds)
            until = max(until, pool.quiet_until or until)
            self.state.pools[name] = replace(pool, quiet_until=until, quiet_reason=reason)

    async def forget_pool(self, name: str, *, now: Now = None) -> bool:
        s, pool = self.state, self.state.pools.get(name)
        if pool is None or pool.deleted_at is None:
            return False
        if any(is_open(s, i) for i in s.instances.values() if i.pool == name):
            return False
        del s.pools[name]
        s.cycles.pop(name, None)
        s.outcomes = [found for found in s.outcomes if found[1] != name]
        s.troubles = {key: found for key, found in s.troubles.items() if key[0] != name}
        text = f"pool {name} is gone: its last machine has ended"
        s.log([moves.pool_event("forgotten", name, text)], s.at(now))
        return True

    async def read_money(self, *, now: Now = None) -> dict[str, PoolMoney]:
        at = self.state.at(now)
        day = moves.day_of(at)
        found: dict[str, PoolMoney] = {}
        for i in self.state.instances.values():
            over = i.gone_at is not None and i.gone_at <= day
            if i.asked_at is None or i.made_at is None or over:
                continue
            before = found.get(i.pool, PoolMoney(pool=i.pool))
            spent = moves.cost_since(
                day,
                at,
                usd_per_hour=i.usd_per_hour,
                asked_at=i.asked_at,
                gone_at=i.gone_at,
                made=i.made_at is not None,
            )
            found[i.pool] = PoolMoney(
                pool=i.pool,
                usd_per_hour=before.usd_per_hour + (i.usd_per_hour if i.gone_at is None else 0.0),
                spent_today_usd=before.spent_today_usd + spent,
            )
        return found

    async def record_cycle(self, summary: CycleSummary, blocked: str) -> None:
        s, name = self.state, summary.pool
        s.cycles[name] = [*s.cycles.get(name, []), summary][-moves.MAX_CYCLES :]
        if name in s.pools:
            s.pools[name] = replace(s.pools[name], blocked=blocked, cycled_at=summary.timestamp)

    async def list_cycles(self, name: str, limit: int = 100) -> list[CycleSummary]:
        return self.state.cycles.get(name, [])[::-1][:limit]


def is_open(s: MemoryState, found: MemoryInstance) -> bool:
    """Return whether a machine is not gone, or its host not terminated."""
    over = s.hosts[found.host_id].state is HostState.TERMINATED
    return found.state is not InstanceState.GONE or not over
