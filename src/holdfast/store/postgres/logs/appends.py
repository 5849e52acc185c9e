"""Logs and forensics in PostgreSQL."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.calls.marks import list_spans
from holdfast.core.ids import TaskKey
from holdfast.core.logs import plan as log_plan
from holdfast.core.logs.grams import CARRY_BYTES, make_bloom
from holdfast.core.logs.plan import LogBase, LogLife, LogPlace, Range
from holdfast.core.records import LogChunk, LogStreamRecord
from holdfast.moves.rows import clean_text, is_storable_key
from holdfast.moves.values import LogAppend
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, transacts
from holdfast.store.postgres.connection.session import Rows, Tx, to_json
from holdfast.store.postgres.logs.marking import find_marker
from holdfast.wire.agent import Forensics, LogReadOrder
from holdfast.wire.logs.uploads import LogReadAnswer

_STREAM = ("job_id", "attempt", "rank", "stream")


LOG_READ_SECONDS = 120.0


class PostgresLogs(OnSession):
    """The output of tasks, and the evidence gathered before a kill."""

    async def append_logs(
        self, host_id: str, appends: Sequence[LogAppend], *, now: Now = None
    ) -> list[int | None]:
        """Write pieces of the logs of tasks that this host ran, in their order and in one
        transaction. `keep_bytes` of each stream are kept: 1/8 at its head, the rest at its tail.
        Bytes that arrive a second time at an offset change nothing. Return the size of each stream
        afterwards, None where no attempt of that job and epoch ran on this host."""
        asked = _ask_streams(host_id, [a for a in appends if is_storable_key(a.key)])
        if all(asked["silent"]):
            # The statement that makes the rows of streams without a byte ends them too.
            found = await self.session.single(lambda tx: _lock_streams(tx, asked))
            if all(stream.ended and not stream.replaced for stream in found.values()):
                streams = (found.get((a.key, a.stream)) for a in appends)
                return [None if stream is None else stream.size for stream in streams]
        return await self.session.transact(lambda tx: _append(tx, asked, appends, now))

    async def list_log_streams(
        self, job_id: str, attempt: int | None = None
    ) -> list[LogStreamRecord]:
        """Return the streams of a job, or of one attempt."""
        params = {"job_id": job_id, "attempt": attempt}
        return await self.session.list_of(LogStreamRecord, "list_streams", **params)

    async def read_log(
        self,
        job_id: str,
        attempt: int,
        rank: int,
        stream: str,
        offset: int,
        *,
        limit_bytes: int = 1 << 20,
    ) -> list[LogChunk]:
        """Return bytes of a stream from `offset` on, trimmed to start there. Where offsets jump,
        the bytes between were not kept."""
        rows = await self.session.rows(
            "read_log",
            job_id=job_id,
            attempt=attempt,
            rank=rank,
            stream=stream,
            offset=offset,
            # Enough small chunks to reach the bytes; the caller asks on from the last offset.
            limit=max(64, limit_bytes // log_plan.PIECE_BYTES * 4),
        )
        chunks = log_plan.window(
            [(row["offset"], row["data"]) for row in rows], offset, limit_bytes
        )
        return [
            LogChunk(stream=stream, rank=rank, offset=at, data=data, at=row["at"])
            for row, (at, data) in zip(rows, chunks, strict=False)
        ]

    async def list_log_lives(
        self, job_id: str, attempt: int, rank: int, stream: str
    ) -> list[LogLife]:
        """Return the processes that wrote a stream, oldest first: the first process of the rank,
        and each replacement, with their hosts."""
        where = {"job_id": job_id, "attempt": attempt, "rank": rank, "stream": stream}
        return [
            LogLife(TaskKey(job_id, rank, row["epoch"]), row["host_id"], row["base"])
            for row in await self.session.rows("list_log_lives", **where)
        ]

    async def ask_log_read(self, host_id: str, order: LogReadOrder, *, now: Now = None) -> None:
        """Write a reader's request for bytes from a host; drop requests that are older than
        `LOG_READ_SECONDS`."""
        told = {"id": order.id, "host_id": host_id, "order": to_json(order)}
        await self.session.single(
            lambda tx: tx.run("ask_log_read", **told, seconds=LOG_READ_SECONDS, now=now)
        )

    async def list_log_reads(self, host_id: str) -> list[LogReadOrder]:
        """Return the oldest requests that this host has not answered, a few at a time."""
        rows = await self.session.rows("list_log_reads", host_id=host_id)
        return [msgspec.convert(row["order"], LogReadOrder) for row in rows]

    @transacts
    async def answer_log_reads(
        self, tx: Tx, host_id: str, answers: Sequence[LogReadAnswer]
    ) -> None:
        """Write a host's answers for their readers; drop those that no reader waits for."""
        for answer in answers:
            told = {"data": answer.data, "reason": clean_text(answer.reason), "at": answer.offset}
            await tx.run("answer_log_read", id=clean_text(answer.id), host_id=host_id, **told)

    async def take_log_read(self, read_id: str, *, give_up: bool = False) -> LogReadAnswer | None:
        """Return the answer to a reader's request and delete both; None while there is no answer.
        give_up: delete the request even without an answer."""
        for row in await self.session.rows("take_log_read", id=read_id, give_up=give_up):
            if row["at"] is not None:
                told = {"data": bytes(row["data"]), "reason": row["reason"]}
                return LogReadAnswer(id=read_id, offset=row["at"], **told)
        return None

    @transacts
    async def put_forensics(self, tx: Tx, host_id: str, forensics: Forensics) -> None:
        """Write forensics. Raises Stale when no attempt of that job and epoch ran on this host."""
        key = forensics.key
        attempt = await _find_attempt(tx, host_id, key)
        await tx.run(
            "put_forensics",
            job_id=key.job_id,
            attempt=attempt,
            rank=key.rank,
            epoch=key.epoch,
            reason=clean_text(forensics.reason),
            seconds=forensics.seconds,
            sections=to_json(forensics.sections),
        )

    async def get_forensics(
        self, job_id: str, attempt: int | None = None
    ) -> list[tuple[int, Forensics]]:
        """Return (attempt number, forensics), oldest first."""
        rows = await self.session.rows("read_forensics", job_id=job_id, attempt=attempt)
        return [
            (
                row["attempt"],
                Forensics(
                    key=TaskKey(row["job_id"], row["rank"], row["epoch"]),
                    reason=row["reason"],
                    seconds=row["seconds"],
                    sections=row["sections"],
                ),
            )
            for row in rows
        ]


class _Stream:
    """A locked stream, as it will be after the appends so far."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.where = {part: row[part] for part in _STREAM}
        self.size, self.ended, self.replaced = int(row["size"]), row["ended"], row["replaced"]
        self.last_bytes: bytes | None = row["last_bytes"]

    def find_before(self, at: int, data: bytes, offset: int) -> bytes | None:
        """Return the bytes before `offset` that count for a bloom, None where they are not known.
        at, data: an append that reaches to `offset`."""
        own = data[max(0, offset - at - CARRY_BYTES) : offset - at]
        if len(own) == CARRY_BYTES or at == 0:
            return own
        if at > self.size or offset < self.size or self.last_bytes is None:
            return None
        return (self.last_bytes + data[max(0, self.size - at) : offset - at])[-CARRY_BYTES:]


async def _append(
    tx: Tx, asked: Mapping[str, Any], appends: Sequence[LogAppend], now: Now
) -> list[int | None]:
    found, writing = await _lock_streams(tx, asked), _Writing(tx, now)
    sizes: list[int | None] = []
    for append in appends:
        stream = found.get((append.key, append.stream))
        sizes.append(None if stream is None else await writing.append(stream, append))
    await writing.end()
    return sizes


def _ask_streams(host_id: str, appends: Sequence[LogAppend]) -> dict[str, Any]:
    """Return the parameters of `lock_streams`. A stream is silent where all that is told of it is
    that it has ended without a byte."""
    silent: dict[tuple[TaskKey, str], bool] = {}
    for append in appends:
        once = (append.key, append.stream) not in silent
        said = append.data or append.offset
        silent[append.key, append.stream] = once and append.ended and not said
    return {
        "jobs": [key.job_id for key, _ in silent],
        "ranks": [key.rank for key, _ in silent],
        "epochs": [key.epoch for key, _ in silent],
        "streams": [stream for _, stream in silent],
        "silent": list(silent.values()),
        "host_id": host_id,
    }


async def _lock_streams(tx: Tx, asked: Mapping[str, Any]) -> dict[tuple[TaskKey, str], _Stream]:
    """Lock the streams of tasks that ran on their host. A rank that was replaced on the same host
    has two keys and one stream."""
    streams: dict[tuple[Any, ...], _Stream] = {}
    found = {}
    for row in await tx.rows("lock_streams", **asked) if asked["jobs"] else ():
        stream = streams.setdefault(tuple(row[part] for part in _STREAM), _Stream(row))
        found[TaskKey(row["job_id"], row["rank"], row["epoch"]), row["stream"]] = stream
    return found


class _Writing:
    """Appends to locked streams, gathered as statements that are sent together with the COMMIT."""

    def __init__(self, tx: Tx, now: Now) -> None:
        self._tx, self._now = tx, now
        self._steps: list[tuple[str, dict[str, Any]]] = []

    async def append(self, stream: _Stream, append: LogAppend) -> int:
        """Append bytes, and return the stream's size afterwards."""
        place = await self._find_place(stream, append.key.epoch)
        at, kept = place.cut(append.offset, append.data)
        ends = append.ended and not place.later
        if not kept and not place.new and (stream.ended or not ends):
            return stream.size
        ranges = []
        if at < stream.size:  # not the usual append at the end; bytes are not written twice
            span = {"start": at, "end": at + len(kept), "longest": log_plan.PIECE_BYTES}
            rows = await self._do("find_overlaps", {**stream.where, **span})
            ranges = [Range(r["offset"], r["length"]) for r in rows]
        plan = log_plan.plan_append(stream.size, ranges, at, kept, append.keep_bytes)
        change = sum(len(piece) for _, piece in plan.pieces)
        if plan.pieces:
            self._steps.append(self._insert(stream, at, kept, plan.pieces))
        spans = list_spans(at, kept) if append.marked and plan.pieces else []
        if spans:
            self._steps.append(("insert_call_outputs", {**stream.where, "spans": to_json(spans)}))
        if plan.tail_start > plan.head:  # else the whole stream is kept
            bounds = {"head": plan.head, "tail_start": plan.tail_start}
            if append.marked:
                self._steps.append(("drop_call_outputs", {**stream.where, **bounds}))
            change -= int(
                next(iter((await self._do("drop_chunks", {**stream.where, **bounds}))[0].values()))
            )
        goes_on = place.new and not ends
        if plan.size > stream.size:
            stream.last_bytes = stream.find_before(at, kept, plan.size)
        written: dict[str, Any] = {"size": plan.size, "change": change, "ended": ends}
        written |= {"goes_on": goes_on, "last_bytes": stream.last_bytes}
        self._steps.append(("write_stream", {**stream.where, **written}))
        stream.size, stream.ended = plan.size, (stream.ended or ends) and not goes_on
        return plan.size

    def _insert(
        self, stream: _Stream, at: int, data: bytes, pieces: Sequence[tuple[int, bytes]]
    ) -> tuple[str, dict[str, Any]]:
        """Return the statement that writes pieces of an append, each with its bloom (GREP-1)."""
        mark = find_marker()
        before = [stream.find_before(at, data, offset) for offset, _ in pieces]
        blooms = [
            None if known is None else make_bloom(known, piece, mark)
            for known, (_, piece) in zip(before, pieces, strict=True)
        ]
        begins = [
            offset == 0 or (known is not None and known.endswith(b"\n"))
            for known, (offset, _) in zip(before, pieces, strict=True)
        ]
        written = {"offsets": [offset for offset, _ in pieces], "blooms": blooms, "begins": begins}
        written |= {"pieces": [piece for _, piece in pieces], "now": self._now}
        return "insert_chunks", {**stream.where, **written}

    async def end(self) -> None:
        """Send the last statements and end the transaction."""
        if self._steps:
            await self._tx.last(*self._steps)

    async def _do(self, name: str, params: dict[str, Any]) -> Rows:
        """Run the gathered statements, then the query `name`, and return the rows of that query."""
        steps, self._steps = self._steps, []
        *_, rows = await self._tx.many(*steps, (name, params))
        return rows

    async def _find_place(self, stream: _Stream, epoch: int) -> LogPlace:
        if not stream.replaced:
            return LogPlace(0, None, new=False, later=False)
        rows = await self._do("read_log_bases", stream.where)
        place = log_plan.find_place(
            [LogBase(r["epoch"], r["number"], r["base"]) for r in rows], epoch, stream.size
        )
        if place.new:
            base = {**stream.where, "epoch": epoch, "base": place.base}
            self._steps.append(("write_log_base", base))
        return place


async def _find_attempt(tx: Tx, host_id: str, key: TaskKey) -> int:
    found = None
    if is_storable_key(key):
        params = {"job_id": key.job_id, "epoch": key.epoch, "rank": key.rank, "host_id": host_id}
        found = await tx.value("find_attempt_on_host", **params)
    if found is None:
        raise log_plan.no_attempt(host_id, key)
    return int(found)
