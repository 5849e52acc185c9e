"""Gauges and pruning in PostgreSQL."""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.store.port.store import Gauges
from holdfast.store.postgres.connection.session import Session, Tx

PRUNE_BATCH = 20  # jobs a transaction: each may have hundreds of megabytes of log
_PRUNED = (
    "prune_chunks",
    "prune_streams",
    "prune_forensics",
    "prune_attempts",
    "prune_replacements",
    "prune_secrets",
    "prune_events",
    "prune_jobs",
)


class UpkeepPart:
    """The part of the store that counts and cleans."""

    session: Session

    async def read_gauges(self, *, now: datetime | None = None) -> Gauges:
        """See `Store.read_gauges`."""

        async def work(tx: Tx) -> Gauges:
            await tx.conn.execute(
                "set transaction isolation level repeatable read, read only", prepare=False
            )
            jobs = {
                (row["queue"], row["state"]): row["count"] for row in await tx.rows("count_jobs")
            }
            hosts = await tx.rows("gauge_hosts")
            busy = await tx.one("gauge_busy") or {}
            slots, gpus = busy.values()
            alive = [row for row in hosts if row["state"] != "terminated"]
            return Gauges(
                jobs=jobs,
                hosts={row["state"]: row["count"] for row in hosts},
                dead_hosts=sum(row["dead"] for row in hosts),
                busy_cpu_slots=slots,
                busy_gpus=gpus,
                total_cpu_slots=sum(row["cpu_slots"] for row in alive),
                total_gpus=sum(row["gpus"] for row in alive),
                oldest_queued_seconds=max(0.0, await tx.value("gauge_oldest_queued", {"now": now})),
                oldest_transaction_seconds=await tx.value("gauge_oldest_transaction"),
                webhook_deliveries=await tx.one("count_deliveries") or {},
            )

        return await self.session.transact(work)

    async def prune(
        self, history_days: float, *, limit: int = 1000, now: datetime | None = None
    ) -> int:
        """See `Store.prune`. Old events of hosts, queues and settings go too."""

        async def work(tx: Tx) -> int:
            before = await tx.now(now) - timedelta(days=history_days)
            ids = [
                row["id"]
                for row in await tx.rows("find_old_jobs", {"before": before, "limit": batch})
            ]
            if ids:
                for name in _PRUNED:
                    await tx.run(name, {"ids": ids})
            await tx.run("prune_other_events", {"before": before, "limit": batch})
            return len(ids)

        total = 0
        while total < limit:
            batch = min(PRUNE_BATCH, limit - total)
            pruned = await self.session.transact(work)
            total += pruned
            if pruned < batch:
                break
        return total
