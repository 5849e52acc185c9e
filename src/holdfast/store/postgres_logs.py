"""Logs and forensics in PostgreSQL."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.core.records import LogChunk, LogStreamRecord
from holdfast.store.log_plan import PIECE_BYTES, LogBase, Place, Range, find_place, no_attempt, plan_append, window
from holdfast.store.postgres_session import Session, Tx, to_json
from holdfast.store.rows import clean_text, is_storable_key
from holdfast.wire.agent import Forensics


class LogsPart:
    """The part of the store that keeps what tasks wrote and what was found before a kill."""

    session: Session

    async def append_log(
        self, host_id: str, key: TaskKey, stream: str, offset: int, data: bytes, ended: bool, keep_bytes: int,
        *, now: datetime | None = None,
    ) -> int:  # fmt: skip
        """See `Store.append_log`."""

        async def work(tx: Tx) -> int:
            who = {"job_id": key.job_id, "epoch": key.epoch, "rank": key.rank, "host_id": host_id, "stream": stream}
            row = await tx.one("lock_stream", who) if is_storable_key(key) else None
            if row is None:
                raise no_attempt(host_id, key)
            where = {"job_id": key.job_id, "attempt": row["attempt"], "rank": key.rank, "stream": stream}
            place = await self._find_place(tx, where, key.epoch, row)
            at, kept = place.cut(offset, data)
            ends = ended and not place.later
            if not kept and not place.new and (row["ended"] or not ends):
                return int(row["size"])
            return await self._append(tx, where, row["size"], at, kept, keep_bytes, ended=ends, goes_on=place.new)

        return await self.session.transact(work)

    @staticmethod
    async def _find_place(tx: Tx, where: dict[str, Any], epoch: int, row: dict[str, Any]) -> Place:
        if not row["replaced"]:
            return Place(0, None, new=False, later=False)
        rows = await tx.rows("read_log_bases", where)
        place = find_place([LogBase(r["epoch"], r["number"], r["base"]) for r in rows], epoch, row["size"])
        if place.new:
            await tx.run("write_log_base", {**where, "epoch": epoch, "base": place.base})
        return place

    @staticmethod
    async def _append(
        tx: Tx, where: dict[str, Any], size: int, offset: int, data: bytes, keep_bytes: int, *, ended: bool, goes_on: bool
    ) -> int:  # fmt: skip
        ranges = []
        if offset < size:  # not the usual append at the end: bytes that are there are not written again
            span = {"start": offset, "end": offset + len(data), "longest": PIECE_BYTES}
            ranges = [Range(r["offset"], r["length"]) for r in await tx.rows("find_overlaps", {**where, **span})]
        plan = plan_append(size, ranges, offset, data, keep_bytes)
        change = sum(len(piece) for _, piece in plan.pieces)
        steps: list[tuple[str, dict[str, Any]]] = []
        if plan.pieces:
            offsets, pieces = [at for at, _ in plan.pieces], [piece for _, piece in plan.pieces]
            steps.append(("insert_chunks", {**where, "offsets": offsets, "pieces": pieces}))
        if plan.tail_start > plan.head:  # else the whole stream is kept, and there is nothing between the two
            bounds = {"head": plan.head, "tail_start": plan.tail_start}
            *_, dropped = await tx.many(*steps, ("drop_chunks", {**where, **bounds}))
            change, steps = change - int(next(iter(dropped[0].values()))), []
        written = {**where, "size": plan.size, "change": change, "ended": ended, "goes_on": goes_on and not ended}
        await tx.many(*steps, ("write_stream", written))
        return plan.size

    async def list_log_streams(self, job_id: str, attempt: int | None = None) -> list[LogStreamRecord]:
        """See `Store.list_log_streams`."""
        rows = await self.session.rows("list_streams", {"job_id": job_id, "attempt": attempt})
        return [msgspec.convert(row, LogStreamRecord) for row in rows]

    async def read_log(
        self, job_id: str, attempt: int, rank: int, stream: str, offset: int, *, limit_bytes: int = 1 << 20
    ) -> list[LogChunk]:
        """See `Store.read_log`."""
        rows = await self.session.rows(
            "read_log",
            {
                "job_id": job_id, "attempt": attempt, "rank": rank, "stream": stream, "offset": offset,
                # Small chunks come together until the bytes are reached; the caller asks on from the last offset.
                "limit": max(64, limit_bytes // PIECE_BYTES * 4),
            },
        )  # fmt: skip
        chunks = window([(row["offset"], row["data"]) for row in rows], offset, limit_bytes)
        return [LogChunk(stream=stream, rank=rank, offset=at, data=data) for at, data in chunks]

    async def put_forensics(self, host_id: str, forensics: Forensics, *, now: datetime | None = None) -> None:
        """See `Store.put_forensics`."""
        key = forensics.key

        async def work(tx: Tx) -> None:
            attempt = await _find_attempt(tx, host_id, key)
            await tx.run(
                "put_forensics",
                {
                    "job_id": key.job_id, "attempt": attempt, "rank": key.rank, "epoch": key.epoch,
                    "reason": clean_text(forensics.reason), "seconds": forensics.seconds,
                    "sections": to_json(forensics.sections), "now": now,
                },
            )  # fmt: skip

        await self.session.transact(work)

    async def get_forensics(self, job_id: str, attempt: int | None = None) -> list[tuple[int, Forensics]]:
        """See `Store.get_forensics`."""
        rows = await self.session.rows("read_forensics", {"job_id": job_id, "attempt": attempt})
        return [
            (
                row["attempt"],
                Forensics(key=TaskKey(row["job_id"], row["rank"], row["epoch"]), reason=row["reason"],
                          seconds=row["seconds"], sections=row["sections"]),
            )
            for row in rows
        ]  # fmt: skip


async def _find_attempt(tx: Tx, host_id: str, key: TaskKey) -> int:
    found = None
    if is_storable_key(key):
        params = {"job_id": key.job_id, "epoch": key.epoch, "rank": key.rank, "host_id": host_id}
        found = await tx.value("find_attempt_on_host", params)
    if found is None:
        raise no_attempt(host_id, key)
    return int(found)
