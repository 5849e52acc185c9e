"""The views of the fleet that dashboards read, under the names of existing deployments."""

from typing import Protocol

from holdfast.core.records import OrchestratorStatus, WorkerHealth, WorkerPerformance


class FleetViews(Protocol):
    """Three views, each from one consistent read by the store's own clock."""

    async def read_status(self) -> OrchestratorStatus:
        """Return counts of the whole fleet, and one word about its health."""

    async def list_health(self) -> list[WorkerHealth]:
        """Return the active hosts, by name."""

    async def list_performance(self) -> list[WorkerPerformance]:
        """Return the work of each host, by name; terminated hosts are missing."""
