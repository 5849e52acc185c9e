"""Prices of hosts, what projects have spent, and idle GPUs, in PostgreSQL."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast.core.report.budgets import Spend
from holdfast.core.report.idle import IdleGpus
from holdfast.core.report.money import (
    PRICE,
    HostPrice,
    PriceChange,
    Prices,
    find_changes,
    find_price,
)
from holdfast.errors import ValidationError
from holdfast.moves.rows import NewEvent
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Tx, to_json
from holdfast.store.postgres.moves import write_events
from holdfast.store.postgres.prices import write_prices
from holdfast.store.postgres.settings import write_cluster


class PostgresMoney(OnSession):
    """Prices of hosts, the spending of projects, and GPUs that are held for
    nothing."""

    @transacts
    async def note_prices(
        self, tx: Tx, gpu_hour_usd: float | None = None, *, now: Now = None
    ) -> list[HostPrice]:
        """Write what the present hosts and the cluster's setting cost, where that changed, and return
        all prices on record. gpu_hour_usd: the setting's value where the database has none."""
        at = await tx.now(now)
        (cluster,) = await tx.rows("share_switch")  # no change of the setting comes in between
        own = cluster["settings"].get(PRICE, gpu_hour_usd)
        found = [find_price(**row) for row in await tx.rows("read_price_grounds")]
        noted = {price.host: price for price in await tx.list_of(HostPrice, "read_noted_prices")}
        found.append(HostPrice(host="", gpu_hour_usd=own))
        await write_prices(tx, find_changes(noted, found, at), at)
        return await tx.list_of(HostPrice, "read_host_prices")

    @reads
    async def read_prices(self, tx: Tx) -> list[HostPrice]:
        """Return all prices on record in the order of their writing, also of hosts that are gone."""
        return await tx.list_of(HostPrice, "read_host_prices")

    @transacts
    async def set_price(self, tx: Tx, price: HostPrice, *, now: Now = None) -> None:
        """Write the price of a host's GPU-hours, or the cluster's, which holds from `price.since` on.
        Raises ValidationError for a host that the cluster never had."""
        at = await tx.now(now)
        price = msgspec.structs.replace(price, since=min(price.since or at, at))
        prices = Prices(await tx.list_of(HostPrice, "read_host_prices"))
        if not price.host:
            await write_cluster(tx, {PRICE: price.gpu_hour_usd}, [], at, priced=False)
        elif not prices.knows(price.host):
            raise ValidationError(
                f"no host {price.host!r} has a price on record; `holdfast hosts` lists them",
                field="host",
            )
        before = prices.find_price(price.host, price.since or at)
        price = msgspec.structs.replace(price, slot_hour_usd=before.slot_hour_usd)
        await write_prices(tx, [PriceChange(before, price)], at, by_hand=bool(price.host))

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

    @reads
    async def read_closed(self, tx: Tx) -> datetime | None:
        """Return the instant up to which the ledger is written, None before its first minute."""
        row = await tx.one("read_ledger_cursor")
        return None if row is None else row["at"]

    @reads
    async def read_idle_gpus(self, tx: Tx) -> list[IdleGpus]:
        """Return the jobs that held idle GPUs at the leader's last look."""
        return await tx.list_of(IdleGpus, "read_idle_gpus")

    @transacts
    async def write_idle_gpus(
        self, tx: Tx, found: Sequence[IdleGpus], events: Sequence[NewEvent] = (), *, now: Now = None
    ) -> None:
        """Write the jobs that hold idle GPUs, forget all others, and write the events that tell of
        them, in one transaction."""
        at = await tx.now(now)
        await tx.run("keep_idle_gpus", ids=[one.job_id for one in found])
        if found:
            await tx.run("put_idle_gpus", rows=to_json(list(found)))
        await write_events(tx, list(events), at)
