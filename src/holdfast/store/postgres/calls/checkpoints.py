"""Checkpoints of calls for their next attempts: the newest of each call. The bytes are in the blob
store.

SAVED-1  A checkpoint is accepted from, and given to, only the executor that has the call in an open
        batch, while the call has no end in it (CALLSET-1).
SAVED-2  A row is written when its bytes are whole in the blob store. The row is deleted after its
        blob, once the call has succeeded or its set is gone, because a person may retry a call that failed.
"""

from collections.abc import Sequence

import msgspec

from holdfast.moves.calls.checkpoints import CallHolder, CallKept, locate_call, read_blobs
from holdfast.moves.checkpoints import NewCheckpoint
from holdfast.moves.rows import MAX_BIGINT
from holdfast.store.postgres.calls.rows import read_batch
from holdfast.store.postgres.connection.parts import OnSession, transacts
from holdfast.store.postgres.connection.session import Tx, to_json


class PostgresCallCheckpoints(OnSession):
    """Checkpoints by (set, index)."""

    @transacts
    async def find_kept(self, tx: Tx, holder: CallHolder) -> CallKept:
        """Return the call that an executor names, with the call's checkpoint. Raises Stale
        (SAVED-1)."""
        n, index = await _locate(tx, "read_held_batch", holder)
        row = await tx.one("read_call_checkpoint", n=n, index=index)
        return msgspec.convert(row, CallKept)

    @transacts
    async def keep(self, tx: Tx, holder: CallHolder, new: NewCheckpoint) -> tuple[str, ...]:
        """Write a call's checkpoint in place of the earlier one, and return the blob of that
        earlier one. Raises Stale (SAVED-1)."""
        n, index = await _locate(tx, "lock_held_batch", holder)
        given = {"blob": new.blob, "size": new.size, "sha256": new.sha256}
        rows = await tx.rows("put_call_checkpoint", n=n, index=index, **given)
        return tuple(row["blob"] for row in rows)

    async def find_unneeded_blobs(self, *, limit: int = 1000) -> tuple[str, ...]:
        """Return the blobs of calls that have succeeded or whose set was deleted. The caller
        deletes the blobs, then calls `forget_blobs`."""
        rows = await self.session.rows("find_unneeded_call_blobs", limit=limit)
        return tuple(row["blob"] for row in rows)

    async def forget_blobs(self, names: Sequence[str]) -> None:
        """Delete the rows of these blobs."""
        rows = to_json(read_blobs(names))
        await self.session.transact(lambda tx: tx.run("forget_call_blobs", rows=rows))

    async def find_known_blobs(self, names: Sequence[str]) -> set[str]:
        """Return which of these blobs must stay, because a row names them, or because they belong
        to no call of this database."""
        mine = read_blobs(names)
        rows = await self.session.rows("find_orphan_call_blobs", rows=to_json(mine))
        return {*names} - {row["blob"] for row in rows}


async def _locate(tx: Tx, name: str, holder: CallHolder) -> tuple[int, int]:
    row = await tx.one(name, batch=min(holder.batch, MAX_BIGINT))
    return locate_call(None if row is None else read_batch(row), holder)
