"""The views of the fleet in PostgreSQL."""

import msgspec

from holdfast.core.fleet.records import FleetStatus, HostCount, HostHealth, HostPerformance
from holdfast.store.postgres.connection.parts import OnSession, reads
from holdfast.store.postgres.connection.session import Tx


class PostgresFleetViews(OnSession):
    """Three views, each from one consistent read by the store's own clock."""

    @reads
    async def read_status(self, tx: Tx) -> FleetStatus:
        """Return counts of the whole fleet, and one word that says how healthy the fleet is."""
        return msgspec.convert(await tx.one("read_fleet_status"), FleetStatus)

    async def count_hosts(self) -> list[HostCount]:
        """Return how many hosts are in each state, and their slots and GPUs."""
        return await self.session.list_of(HostCount, "count_hosts")

    async def list_health(self) -> list[HostHealth]:
        """Return the active hosts, by name."""
        return await self.session.list_of(HostHealth, "read_host_health")

    async def list_performance(self) -> list[HostPerformance]:
        """Return the work of each host, by name; terminated hosts are missing."""
        return await self.session.list_of(HostPerformance, "read_host_performance")
