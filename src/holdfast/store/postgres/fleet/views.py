"""The views of the fleet in PostgreSQL."""

import msgspec

from holdfast.core.records import OrchestratorStatus, WorkerHealth, WorkerPerformance
from holdfast.store.postgres.connection.ports import OnSession, reads
from holdfast.store.postgres.connection.session import Tx


class PostgresFleetViews(OnSession):
    """`FleetViews` on PostgreSQL."""

    @reads
    async def read_status(self, tx: Tx) -> OrchestratorStatus:
        return msgspec.convert(await tx.one("read_orchestrator_status"), OrchestratorStatus)

    async def list_health(self) -> list[WorkerHealth]:
        return await self.session.list_of(WorkerHealth, "read_workers_health")

    async def list_performance(self) -> list[WorkerPerformance]:
        return await self.session.list_of(WorkerPerformance, "read_worker_performance")
