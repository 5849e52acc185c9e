"""Checkpoints of calls in PostgreSQL."""

from collections.abc import Sequence

import msgspec

from holdfast.moves.calls.checkpoints import CallHolder, CallKept, locate_call, read_blobs
from holdfast.moves.checkpoints import NewCheckpoint
from holdfast.moves.rows import MAX_BIGINT
from holdfast.store.postgres.calls.rows import read_batch
from holdfast.store.postgres.connection.ports import OnSession, transacts
from holdfast.store.postgres.connection.session import Tx, to_json


class PostgresCallCheckpoints(OnSession):
    """`CallCheckpointStore` on PostgreSQL."""

    @transacts
    async def find_kept(self, tx: Tx, holder: CallHolder) -> CallKept:
        n, index = await _locate(tx, "read_held_batch", holder)
        row = await tx.one("read_call_checkpoint", n=n, index=index)
        return msgspec.convert(row, CallKept)

    @transacts
    async def keep(self, tx: Tx, holder: CallHolder, new: NewCheckpoint) -> tuple[str, ...]:
        n, index = await _locate(tx, "lock_held_batch", holder)
        given = {"blob": new.blob, "size": new.size, "sha256": new.sha256}
        rows = await tx.rows("put_call_checkpoint", n=n, index=index, **given)
        return tuple(row["blob"] for row in rows)

    async def find_unneeded_blobs(self, *, limit: int = 1000) -> tuple[str, ...]:
        rows = await self.session.rows("find_unneeded_call_blobs", limit=limit)
        return tuple(row["blob"] for row in rows)

    async def forget_blobs(self, names: Sequence[str]) -> None:
        rows = to_json(read_blobs(names))
        await self.session.transact(lambda tx: tx.run("forget_call_blobs", rows=rows))

    async def find_known_blobs(self, names: Sequence[str]) -> set[str]:
        mine = read_blobs(names)
        rows = await self.session.rows("find_known_call_blobs", rows=to_json(mine))
        return {*names} - {one.blob for one in mine} | {row["blob"] for row in rows}


async def _locate(tx: Tx, name: str, holder: CallHolder) -> tuple[int, int]:
    row = await tx.one(name, batch=min(holder.batch, MAX_BIGINT))
    return locate_call(None if row is None else read_batch(row), holder)
