"""Pools in PostgreSQL, and the records of their cycles."""

from typing import Any

import msgspec

from holdfast.core.fleet.actions import CycleSummary
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.records import PoolMoney, PoolRecord
from holdfast.moves.fleet.pools import (
    MAX_CYCLES,
    changed_fields,
    no_pool,
    pool_event,
    pool_is_going,
)
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, transacts
from holdfast.store.postgres.connection.session import Tx, to_json
from holdfast.store.postgres.moves import write_events


class PostgresPools(OnSession):
    """Pools, as operators write them."""

    async def installation(self) -> str:
        """Return the id of this Holdfast: made once for each database, in every machine's name."""
        found: str = await self.session.single(lambda tx: tx.value("read_installation"))
        return found

    @transacts
    async def put_pool(self, tx: Tx, spec: PoolSpec, *, now: Now = None) -> PoolRecord:
        """Make or replace a pool (checked by the caller). A change forgets which spawns failed before it,
        so that the pool rents at once. Event pool.created or pool.changed.

        Raises:
            Conflict: it is being deleted (code "pool_deleted").
        """
        at = await tx.now(now)
        row = await tx.one("lock_pool", name=spec.name)
        if row is not None and row["deleted_at"] is not None:
            raise pool_is_going(spec.name)
        before = None if row is None else msgspec.convert(row["spec"], PoolSpec)
        if before != spec:
            await tx.run("put_pool", name=spec.name, spec=to_json(spec), now=at)
            if before is None:
                event = pool_event("created", spec.name, f"pool {spec.name} was made")
            else:
                await tx.value("forget_holds", name=spec.name)
                changes = changed_fields(before, spec)
                text = f"pool {spec.name} was changed: {', '.join(changes)}"
                event = pool_event("changed", spec.name, text, changes=changes)
            await write_events(tx, [event], at)
        return await _read_pool(tx, spec.name)

    async def get_pool(self, name: str) -> PoolRecord:
        """Return a pool. Raises NotFound."""
        return await self.session.single(lambda tx: _read_pool(tx, name))

    async def list_pools(self) -> list[PoolRecord]:
        """Return every pool, by name; those being deleted are among them."""
        return [as_pool(row) for row in await self.session.rows("read_pools", names=None)]

    @transacts
    async def pause_pool(self, tx: Tx, name: str, reason: str, *, now: Now = None) -> PoolRecord:
        """Stop a pool from spawning and shrinking. Event pool.paused. Raises NotFound."""
        at = await tx.now(now)
        await _lock_pool(tx, name)
        await tx.run("pause_pool", name=name, reason=reason, now=at)
        text = f"pool {name} is paused: {reason}"
        await write_events(tx, [pool_event("paused", name, text, reason=reason)], at)
        return await _read_pool(tx, name)

    @transacts
    async def resume_pool(self, tx: Tx, name: str, *, now: Now = None) -> PoolRecord:
        """Let a pool scale again, and forget which of its spawns failed. Event pool.resumed, where that
        changes anything. Raises NotFound."""
        at = await tx.now(now)
        row = await _lock_pool(tx, name)
        held = bool(await tx.value("forget_holds", name=name))
        if held or row["paused_at"] is not None:
            await tx.run("resume_pool", name=name)
            text = f"pool {name} scales again"
            await write_events(tx, [pool_event("resumed", name, text)], at)
        return await _read_pool(tx, name)

    @transacts
    async def delete_pool(self, tx: Tx, name: str, *, now: Now = None) -> PoolRecord:
        """Mark a pool deleted: it shrinks to nothing as its hosts become idle, and is forgotten
        then. Event pool.deleted. Raises NotFound."""
        at = await tx.now(now)
        row = await _lock_pool(tx, name)
        if row["deleted_at"] is None:
            await tx.run("delete_pool", name=name, now=at)
            text = f"pool {name} is deleted; its hosts go as they fall idle"
            await write_events(tx, [pool_event("deleted", name, text)], at)
        return await _read_pool(tx, name)

    @transacts
    async def note_throttled(
        self, tx: Tx, name: str, seconds: float, reason: str, *, now: Now = None
    ) -> None:
        """Write that a pool's provider asks for no requests for at least `seconds` from now."""
        at = await tx.now(now)
        await tx.run("quiet_pool", name=name, seconds=seconds, reason=reason, now=at)

    @transacts
    async def forget_pool(self, tx: Tx, name: str, *, now: Now = None) -> bool:
        """Forget a deleted pool, once it has no host and no machine left."""
        row = await tx.one("lock_pool", name=name)
        if row is None or row["deleted_at"] is None:
            return False
        if await tx.value("pool_in_use", name=name):
            return False
        names = ("forget_pool", "forget_pool_cycles", "forget_pool_outcomes")
        await tx.many(*((n, {"name": name}) for n in (*names, "forget_pool_troubles")))
        event = pool_event("forgotten", name, f"pool {name} is gone: its last machine has ended")
        await write_events(tx, [event], await tx.now(now))
        return True

    async def read_money(self, *, now: Now = None) -> dict[str, PoolMoney]:
        """Return the costs of each pool; a pool that has cost nothing today is missing."""
        rows = await self.session.rows("read_money", now=now)
        return {row["pool"]: msgspec.convert(row, PoolMoney) for row in rows}

    async def record_cycle(self, summary: CycleSummary, blocked: str) -> None:
        """Write the summary of a cycle, and drop all but the newest `MAX_CYCLES` of its pool."""
        pool = summary.pool

        async def work(tx: Tx) -> None:
            await tx.many(
                ("record_cycle", {"pool": pool, "summary": to_json(summary)}),
                ("mark_cycle", {"pool": pool, "at": summary.timestamp, "blocked": blocked}),
                ("trim_cycles", {"pool": pool, "keep": MAX_CYCLES}),
            )

        await self.session.transact(work)

    async def list_cycles(self, name: str, limit: int = 100) -> list[CycleSummary]:
        """Return the cycles of a pool, newest first."""
        rows = await self.session.rows("list_cycles", pool=name, limit=limit)
        return [msgspec.convert(row["summary"], CycleSummary) for row in rows]


def as_pool(row: dict[str, Any]) -> PoolRecord:
    """Return a pool's row as its record."""
    return msgspec.convert(row, PoolRecord)


async def _lock_pool(tx: Tx, name: str) -> dict[str, Any]:
    row = await tx.one("lock_pool", name=name)
    if row is None:
        raise no_pool(name)
    return row


async def _read_pool(tx: Tx, name: str) -> PoolRecord:
    row = await tx.one("read_pools", names=[name])
    if row is None:
        raise no_pool(name)
    return as_pool(row)
