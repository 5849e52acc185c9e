"""Pools of hosts: what an operator sees and changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.client.calls import PageCall, RestCall, get, get_pages, path_of, send
from holdfast.client.scripts import gives_list, gives_one

if TYPE_CHECKING:
    from holdfast.core.fleet.actions import CycleSummary, PoolPlan
    from holdfast.core.records import OrchestratorStatus, WorkerHealth, WorkerPerformance
    from holdfast.wire.pools import PoolStatus


class PoolMethods:
    """The client's methods about pools."""

    @gives_list
    def pools(self) -> PageCall[PoolStatus]:
        """Return every pool, its hosts and its money."""
        from holdfast.wire.pools import PoolStatus

        return get_pages(path_of("pools"), PoolStatus)

    @gives_one
    def pool(self, name: str) -> RestCall[PoolStatus]:
        """Return one pool."""
        from holdfast.wire.pools import PoolStatus

        return get(path_of("pools", name), PoolStatus)

    @gives_one
    def put_pool(self, name: str, values: Mapping[str, Any]) -> RestCall[PoolStatus]:
        """Make a pool, or replace it whole. `values` has the keys of a [pool.NAME] table."""
        from holdfast.wire.pools import PoolStatus

        return send("PUT", path_of("pools", name), PoolStatus, dict(values))

    @gives_one
    def set_pool(self, name: str, changes: Mapping[str, Any]) -> RestCall[PoolStatus]:
        """Change some keys of a pool."""
        from holdfast.wire.pools import PoolStatus

        return send("PATCH", path_of("pools", name), PoolStatus, dict(changes))

    @gives_one
    def scale_pool(
        self,
        name: str,
        *,
        min: int | None = None,
        max: int | None = None,
        buffer: int | None = None,
    ) -> RestCall[PoolStatus]:
        """Change a pool's bounds; what is left out stays."""
        from holdfast.wire.pools import PoolStatus, ScaleRequest

        body = ScaleRequest(min=min, max=max, buffer=buffer)
        return send("POST", path_of("pools", name, "scale"), PoolStatus, body)

    @gives_one
    def pause_pool(self, name: str, reason: str = "") -> RestCall[PoolStatus]:
        """Have a pool spawn nothing and shrink by nothing."""
        from holdfast.wire.pools import PoolPause, PoolStatus

        return send("POST", path_of("pools", name, "pause"), PoolStatus, PoolPause(reason=reason))

    @gives_one
    def resume_pool(self, name: str) -> RestCall[PoolStatus]:
        """Have a pool scale again."""
        from holdfast.wire.pools import PoolStatus

        return send("POST", path_of("pools", name, "resume"), PoolStatus)

    @gives_one
    def delete_pool(self, name: str) -> RestCall[PoolStatus]:
        """Have a pool shrink to nothing, as its hosts fall idle, and be forgotten then."""
        from holdfast.wire.pools import PoolStatus

        return send("DELETE", path_of("pools", name), PoolStatus)

    @gives_list
    def pool_cycles(self, name: str, limit: int = 100) -> PageCall[CycleSummary]:
        """Return a pool's last cycles, newest first."""
        from holdfast.core.fleet.actions import CycleSummary

        return get_pages(path_of("pools", name, "cycles"), CycleSummary, limit=limit)

    @gives_one
    def plan_pool(self, name: str) -> RestCall[PoolPlan]:
        """Return what a pool's cycle would do now, and why. Nothing is changed."""
        from holdfast.core.fleet.actions import PoolPlan

        return get(path_of("pools", name, "plan"), PoolPlan)

    @gives_one
    def run_pool(self, name: str) -> RestCall[CycleSummary]:
        """Run one cycle of a pool now, and return its summary."""
        from holdfast.core.fleet.actions import CycleSummary

        return send("POST", path_of("pools", name, "run"), CycleSummary, repeatable=False)

    # ---- the whole fleet
    @gives_one
    def fleet_status(self) -> RestCall[OrchestratorStatus]:
        """Return counts of the whole fleet, and one word about its health."""
        from holdfast.core.records import OrchestratorStatus

        return get(path_of("fleet", "status"), OrchestratorStatus)

    @gives_list
    def workers_health(self) -> PageCall[WorkerHealth]:
        """Return the active hosts: heartbeat, task, GPU memory, and a verdict."""
        from holdfast.core.records import WorkerHealth

        return get_pages(path_of("fleet", "health"), WorkerHealth)

    @gives_list
    def worker_performance(self) -> PageCall[WorkerPerformance]:
        """Return what each host did."""
        from holdfast.core.records import WorkerPerformance

        return get_pages(path_of("fleet", "performance"), WorkerPerformance)
