"""Pools of hosts: what an operator sees and changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.client.late import LateModule, on_pools
from holdfast.client.rest import PageCall, RestCall, ask
from holdfast.client.scripts import gives_list, gives_one

if TYPE_CHECKING:
    from holdfast.core.fleet import actions, records
    from holdfast.wire import pools as wire
else:
    actions = LateModule("holdfast.core.fleet.actions")
    records = LateModule("holdfast.core.fleet.records")
    wire = LateModule("holdfast.wire.pools")


class PoolMethods:
    """The client's methods about pools."""

    @gives_list
    def pools(self) -> PageCall[wire.PoolStatus]:
        """Return every pool, its hosts and its money."""
        return ask(on_pools.LIST_POOLS)

    @gives_one
    def pool(self, name: str) -> RestCall[wire.PoolStatus]:
        """Return one pool."""
        return ask(on_pools.GET_POOL, name)

    @gives_one
    def put_pool(self, name: str, values: Mapping[str, Any]) -> RestCall[wire.PoolStatus]:
        """Make a pool, or replace it whole. values: the keys of a [pool.NAME] table."""
        return ask(on_pools.PUT_POOL, name, body=dict(values))

    @gives_one
    def set_pool(self, name: str, changes: Mapping[str, Any]) -> RestCall[wire.PoolStatus]:
        """Change some keys of a pool."""
        return ask(on_pools.PATCH_POOL, name, body=dict(changes))

    @gives_one
    def scale_pool(
        self,
        name: str,
        *,
        min: int | None = None,
        max: int | None = None,
        buffer: int | None = None,
    ) -> RestCall[wire.PoolStatus]:
        """Change a pool's bounds; bounds that are left out stay."""
        body = wire.ScaleRequest(min=min, max=max, buffer=buffer)
        return ask(on_pools.SCALE_POOL, name, body=body)

    @gives_one
    def pause_pool(self, name: str, reason: str = "") -> RestCall[wire.PoolStatus]:
        """Have a pool rent no machines and end none."""
        return ask(on_pools.PAUSE_POOL, name, body=wire.PoolPause(reason=reason))

    @gives_one
    def resume_pool(self, name: str) -> RestCall[wire.PoolStatus]:
        """Have a pool scale again."""
        return ask(on_pools.RESUME_POOL, name)

    @gives_one
    def delete_pool(self, name: str, *, forget: bool = False) -> RestCall[wire.PoolStatus]:
        """Have a pool shrink to nothing, as its hosts fall idle, and be forgotten then.

        forget: True to forget it at once, where you vouch that its machines are gone; their work is
        placed again.
        """
        call = ask(on_pools.DELETE_POOL, name)
        return msgspec.structs.replace(call, query=(("forget", "1"),)) if forget else call

    @gives_list
    def pool_cycles(self, name: str, limit: int = 100) -> PageCall[actions.CycleSummary]:
        """Return a pool's last cycles, newest first."""
        return ask(on_pools.LIST_CYCLES, name, limit=limit)

    @gives_one
    def plan_pool(self, name: str) -> RestCall[actions.PoolPlan]:
        """Return the actions that a pool's cycle would take now, and why. Nothing is changed."""
        return ask(on_pools.GET_PLAN, name)

    @gives_one
    def run_pool(self, name: str) -> RestCall[actions.CycleSummary]:
        """Run one cycle of a pool now, and return its summary."""
        return ask(on_pools.RUN_CYCLE, name)

    # ---- the whole fleet
    @gives_one
    def fleet_status(self) -> RestCall[records.FleetStatus]:
        """Return counts of the whole fleet, and one word about its health."""
        return ask(on_pools.GET_STATUS)

    @gives_list
    def host_counts(self) -> PageCall[records.HostCount]:
        """Return how many hosts are in each state, and their slots and GPUs."""
        return ask(on_pools.COUNT_HOSTS)

    @gives_list
    def hosts_health(self) -> PageCall[records.HostHealth]:
        """Return the active hosts: heartbeat, task, GPU memory, and a verdict."""
        return ask(on_pools.LIST_HEALTH)

    @gives_list
    def hosts_performance(self) -> PageCall[records.HostPerformance]:
        """Return the work that each host has done."""
        return ask(on_pools.LIST_PERFORMANCE)
