"""Prices of hosts, and what projects have spent, in PostgreSQL."""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.report.budgets import Spend
from holdfast.core.report.money import HostPrice, find_price
from holdfast.moves.rows import NewEvent
from holdfast.store.port.clock import Now
from holdfast.store.postgres.connection.ports import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Tx, to_json
from holdfast.store.postgres.moves import write_events


class PostgresMoney(OnSession):
    """What hosts cost, and what projects have spent of their budgets."""

    @transacts
    async def note_prices(self, tx: Tx, *, now: Now = None) -> list[HostPrice]:
        """Write what the present hosts cost, and return the prices of all hosts on record."""
        at = await tx.now(now)
        found = [find_price(**row) for row in await tx.rows("read_price_grounds")]
        if found:
            rows = [msgspec.structs.asdict(price) for price in found]
            await tx.run("write_host_prices", rows=to_json(rows), now=at)
        return await tx.list_of(HostPrice, "read_host_prices")

    @reads
    async def read_prices(self, tx: Tx) -> list[HostPrice]:
        """Return the price of every host on record, also of hosts that are gone."""
        return await tx.list_of(HostPrice, "read_host_prices")

    @reads
    async def read_spends(self, tx: Tx) -> dict[str, Spend]:
        """Return what is on record of each project's spend."""
        return {
            row["name"]: Spend(
                month=row["spent_month"], usd=row["spent_usd"], told=row["told"], held=row["held"]
            )
            for row in await tx.rows("read_projects")
        }

    @transacts
    async def write_spends(
        self,
        tx: Tx,
        spends: Mapping[str, Spend],
        events: Sequence[NewEvent] = (),
        *,
        now: Now = None,
    ) -> None:
        """Write what projects have spent, with the events that tell of it, in one transaction, so
        that a threshold is told exactly once (SPEND-1)."""
        at = await tx.now(now)
        rows = [{"name": name, **msgspec.structs.asdict(s)} for name, s in spends.items()]
        if rows:
            await tx.run("write_spends", rows=to_json(rows), now=at)
        await write_events(tx, list(events), at)
