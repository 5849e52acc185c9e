"""The rows of checkpoints; their bytes are in the blob store.

CKPT-1  A checkpoint is accepted only from the host and incarnation on which the current attempt's
        rank was placed, under the attempt's epoch, while the attempt is reserved, running or
        draining (FENCE-1).
CKPT-2  A row is written when its bytes are whole in the blob store, so the newest row is always a
        checkpoint that can be fetched.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.core.records import CheckpointRecord
from holdfast.core.states import JobState
from holdfast.moves import checkpoints
from holdfast.moves.checkpoints import CheckpointAdded, KnownBlobStore, NewCheckpoint
from holdfast.moves.jobs.requests import no_job
from holdfast.moves.rows import MAX_BIGINT, MAX_INT, clamp_count, clean_text, is_storable_key
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, transacts
from holdfast.store.postgres.connection.session import Tx
from holdfast.store.postgres.moves import write_events


class PostgresCheckpoints(OnSession):
    """Checkpoints by (job, rank, number)."""

    async def check_checkpoint(self, host_id: str, incarnation: str, key: TaskKey) -> int:
        """Return the number of a task's attempt. Raises Stale where a checkpoint of this task would
        not be accepted (CKPT-1)."""
        attempt = None
        if is_storable_key(key):
            attempt = await self.session.single(
                lambda tx: tx.value("check_checkpoint_task", **_who(host_id, incarnation, key))
            )
        if attempt is None:
            raise checkpoints.refuse_task(key, host_id)
        return int(attempt)

    @transacts
    async def add_checkpoint(
        self,
        tx: Tx,
        host_id: str,
        incarnation: str,
        key: TaskKey,
        new: NewCheckpoint,
        keep: int,
        *,
        now: Now = None,
    ) -> CheckpointAdded:
        """Write a checkpoint of a task and drop all but the last `keep` of its rank. A checkpoint
        with the size, checksum and step of the newest of this epoch is a repeated call, and returns
        the row of that one. Raises Stale (CKPT-1)."""
        if not is_storable_key(key):
            raise checkpoints.refuse_task(key, host_id)
        attempt = await tx.value("lock_checkpoint_task", **_who(host_id, incarnation, key))
        if attempt is None:
            raise checkpoints.refuse_task(key, host_id)
        return await _add(tx, key, int(attempt), new, keep, now)

    @transacts
    async def put_checkpoint(
        self,
        tx: Tx,
        job_id: str,
        rank: int,
        epoch: int | None,
        new: NewCheckpoint,
        keep: int,
        *,
        now: Now = None,
    ) -> CheckpointAdded:
        """Write a checkpoint on a person's behalf.

        epoch: the one the rank runs under (its HOLDFAST_EPOCH), while its attempt is reserved,
        running or draining; None while no attempt is.

        Raises:
            NotFound: no such job, or no such rank.
            Stale: another epoch.
            Conflict: an attempt is there and no epoch was given; the job never had an attempt, or
            has succeeded.
        """
        job = await tx.one("lock_checkpoint_job", job_id=job_id, rank=rank)
        if job is None:
            raise no_job(job_id)
        state = JobState(job["state"])
        checkpoints.check_by_hand(
            job_id,
            rank,
            epoch,
            state=state,
            now=job["epoch"],
            attempts=job["attempts"],
            tasks=job["tasks"],
        )
        return await _add(tx, TaskKey(job_id, rank, job["epoch"]), job["attempts"], new, keep, now)

    async def list_checkpoints(self, job_id: str) -> list[CheckpointRecord]:
        """Return a job's checkpoints by rank, then number."""
        return await self.session.list_of(CheckpointRecord, "list_checkpoints", job_id=job_id)

    async def find_checkpoint(
        self, job_id: str, rank: int, *, number: int | None = None, epoch: int | None = None
    ) -> tuple[CheckpointRecord, str]:
        """Return a checkpoint of a rank and its blob: the newest one, the newest of `epoch`, or the
        one of that number. Raises NotFound."""
        row = None
        if 0 <= rank <= MAX_INT and (number or 0) <= MAX_BIGINT and (epoch or 0) <= MAX_BIGINT:
            params = {"job_id": job_id, "rank": rank, "number": number, "epoch": epoch}
            row = await self.session.single(lambda tx: tx.one("find_checkpoint", **params))
        if row is None:
            raise checkpoints.no_checkpoint(job_id, rank, number, epoch)
        return msgspec.convert(row, CheckpointRecord), row["blob"]

    async def find_newest_checkpoints(
        self, ranks: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], CheckpointRecord]:
        """Return (job, rank) → newest checkpoint; ranks without one are missing."""
        wanted = sorted(ranks)
        params = {
            "job_ids": [job_id for job_id, _ in wanted],
            "ranks": [rank for _, rank in wanted],
        }
        rows = await self.session.rows("find_newest_checkpoints", **params)
        return {
            (row["job_id"], row["rank"]): msgspec.convert(row, CheckpointRecord) for row in rows
        }

    @transacts
    async def skip_checkpoint(
        self,
        tx: Tx,
        host_id: str,
        incarnation: str,
        key: TaskKey,
        number: int,
        reason: str,
        *,
        now: Now = None,
    ) -> CheckpointRecord:
        """Return the checkpoint before `number`, because a task of this host cannot start from
        number `number`. Event task.checkpoint_skipped, once for each epoch and number. Nothing is
        deleted, because a person may want to look.

        Raises:
            Stale: CKPT-1. NotFound: nothing older is kept.
        """
        if not is_storable_key(key):
            raise checkpoints.refuse_task(key, host_id)
        task = await tx.one("lock_checkpoint_task", **_who(host_id, incarnation, key))
        if task is None:
            raise checkpoints.refuse_task(key, host_id)
        where = {"job_id": key.job_id, "rank": key.rank, "number": min(number, MAX_BIGINT)}
        row = await tx.one("find_older_checkpoint", **where)
        if row is None:
            raise checkpoints.no_older(key.job_id, key.rank, number)
        older = msgspec.convert(row, CheckpointRecord)
        if not await tx.value("is_skip_told", **where, kind=checkpoints.SKIPPED, epoch=key.epoch):
            about = (task["attempt"], task["queue"], task["project"])
            event = checkpoints.skipped_event(
                host_id, key, *about, number, older, clean_text(reason)
            )
            await write_events(tx, [event], await tx.now(now))
        return older

    async def note_broken(
        self, host_id: str, told: Sequence[tuple[TaskKey, int, int]], *, now: Now = None
    ) -> None:
        """Record attempts that did not go on from their checkpoints, once each, with the event
        task.checkpoint_unused (UNSAVED-2). told: task, its first step, the step of its checkpoint. A
        stale report changes nothing."""
        told = [each for each in told if is_storable_key(each[0])]
        if told:
            await self.session.transact(lambda tx: _note_broken(tx, host_id, told, now))

    async def delete_checkpoints(
        self, job_id: str, *, rank: int | None = None, number: int | None = None
    ) -> tuple[str, ...]:
        """Forget the checkpoints of a job or of one rank, or one of them. Returns their blobs."""
        rows = await self.session.rows(
            "delete_checkpoints", job_id=job_id, rank=rank, number=number
        )
        return tuple(row["blob"] for row in rows)

    async def find_unneeded_blobs(self, *, limit: int = 1000) -> tuple[str, ...]:
        """Return the blobs of checkpoints whose jobs have succeeded or are gone. Delete the blobs,
        then call `forget_blobs`."""
        return tuple(
            row["blob"] for row in await self.session.rows("find_unneeded_blobs", limit=limit)
        )

    async def forget_blobs(self, names: Sequence[str]) -> None:
        """Delete the rows that name these deleted blobs. A blob without a row is no error."""
        params = {"blobs": list(names)}
        await self.session.transact(lambda tx: tx.run("forget_blobs", **params))

    async def find_inputs(self, hashes: Sequence[str]) -> set[str]:
        """Return which of these values are the standard input of a job, an array or a schedule on
        record."""
        rows = await self.session.rows("find_other_than_inputs", hashes=list(hashes))
        return {*hashes} - {row["hash"] for row in rows}

    async def read_blob_store(self, holder: str = "") -> KnownBlobStore:
        """Return the blob store that holds the blobs of this database, as far as it is known.
        holder: the name of the asking server in the lead's row."""
        row = await self.session.single(lambda tx: tx.one("read_blob_store", holder=holder))
        return msgspec.convert(row, KnownBlobStore)

    @transacts
    async def adopt_blob_store(self, tx: Tx, id: str, place: str, *, instead_of: str) -> str:
        """Note that the blobs of this database are in the store `id`, unless another server noted
        one meanwhile; return the id that is known then."""
        await tx.run("adopt_blob_store", id=id, place=place, instead_of=instead_of)
        row = await tx.one("read_blob_store", holder="")
        return "" if row is None else str(row["id"])

    async def list_named_blobs(self, limit: int) -> set[str]:
        """Return the names of blobs on record, of every kind the newest `limit`."""
        return {row["blob"] for row in await self.session.rows("list_named_blobs", limit=limit)}

    async def find_known_blobs(self, names: Sequence[str]) -> set[str]:
        """Return which of these blobs must stay, because a row names them, or because their jobs
        are unknown to this database."""
        rows = await self.session.rows("find_orphan_blobs", blobs=list(names))
        return {*names} - {row["blob"] for row in rows}


async def _note_broken(
    tx: Tx, host_id: str, told: Sequence[tuple[TaskKey, int, int]], now: datetime | None
) -> None:
    given = {
        "jobs": [key.job_id for key, _, _ in told],
        "ranks": [key.rank for key, _, _ in told],
        "epochs": [key.epoch for key, _, _ in told],
        "steps": [clamp_count(step) for _, step, _ in told],
        "given": [clamp_count(step) for _, _, step in told],
    }
    rows = await tx.rows("note_broken", host=host_id, **given)
    if rows:
        events = [
            checkpoints.unused_event(
                host_id,
                TaskKey(row["job_id"], row["rank"], row["epoch"]),
                row["attempt"],
                row["queue"],
                row["project"],
                row["step"],
                row["given"],
            )
            for row in rows
        ]
        await write_events(tx, events, await tx.now(now))


def _who(host_id: str, incarnation: str, key: TaskKey) -> dict[str, object]:
    return {"host_id": host_id, "incarnation": incarnation, **msgspec.structs.asdict(key)}


async def _add(
    tx: Tx, key: TaskKey, attempt: int, new: NewCheckpoint, keep: int, now: datetime | None
) -> CheckpointAdded:
    """Write a checkpoint. The caller holds the job's lock."""
    where = {"job_id": key.job_id, "rank": key.rank}
    newest = await tx.one("find_checkpoint", **where, number=None, epoch=None)
    known = None if newest is None else msgspec.convert(newest, CheckpointRecord)
    if known is not None and checkpoints.is_repeat(known, key.epoch, new):
        return CheckpointAdded(record=known, dropped=(new.blob,))
    given = {**msgspec.structs.asdict(new), "step": clamp_count(new.step)}
    params = {**msgspec.structs.asdict(key), "attempt": attempt, **given, "now": now}
    row = await tx.one("insert_checkpoint", **params)
    dropped = await tx.rows("drop_old_checkpoints", **where, keep=keep)
    return CheckpointAdded(
        record=msgspec.convert(row, CheckpointRecord), dropped=tuple(r["blob"] for r in dropped)
    )
