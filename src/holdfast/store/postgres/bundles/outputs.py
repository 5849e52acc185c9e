"""Outputs in PostgreSQL: the rows."""

from datetime import UTC
from typing import Any

import msgspec

from holdfast.core.data.outputs import LeftOut, OutputsRecord
from holdfast.core.ids import TaskKey
from holdfast.core.states import OutputsEvent, OutputsState
from holdfast.core.transitions import OUTPUTS, sources, step, step_unless_late
from holdfast.errors import Stale
from holdfast.moves.rows import is_storable_key
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Tx, to_json

LEFT_BY = [str(state) for state in sources(OUTPUTS, OutputsEvent.LOSE)]
_NOTHING_SENT = "its host was lost before anything was sent"


class OutputsTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task whose outputs a host may send. wanted: the task's job asks for outputs."""

    attempt: int
    project: str
    wanted: bool


class NewOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """A host's report on the outputs of a task. digest: the bundle; "" where nothing is kept."""

    event: OutputsEvent
    digest: str = ""
    files: int = 0
    bytes: int = 0
    left_out: list[LeftOut] = []
    left_more: int = 0
    reason: str = ""


class OutputsPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of an attempt that began. ended: the attempt is over. gone: the rank's host is gone,
    too."""

    attempt: int
    rank: int
    host: str
    ended: bool
    gone: bool


class OutputsWritten(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a report. plans: names of blobs of earlier reports that nothing on record uses
    any more."""

    state: OutputsState
    plans: tuple[str, ...] = ()


class PostgresOutputs(OnSession):
    """The outputs of attempts."""

    async def find_outputs_task(
        self, host_id: str, incarnation: str, key: TaskKey, attempt: int
    ) -> OutputsTask:
        """Return the task whose outputs a host sends. Raises Stale where the rank of that attempt
        is not this host's."""
        row = None
        if is_storable_key(key):
            given = {"host_id": host_id, "incarnation": incarnation, "attempt": attempt}
            given |= {"job_id": key.job_id, "rank": key.rank}
            row = await self.session.single(lambda tx: tx.one("find_outputs_task", **given))
        if row is None:
            raise Stale(
                f"rank {key.rank} of attempt {attempt} of job {key.job_id} is not this host's, so its "
                "outputs are not taken",
                code="stale_epoch",
            )
        return msgspec.convert(row, OutputsTask)

    @transacts
    async def put_outputs(
        self,
        tx: Tx,
        host_id: str,
        task: OutputsTask,
        key: TaskKey,
        new: NewOutputs,
        *,
        now: Now = None,
    ) -> OutputsWritten:
        """Write a host's report on outputs, by the table of their states. A report that comes late
        changes nothing."""
        where = {"job_id": key.job_id, "attempt": task.attempt, "rank": key.rank}
        before = await tx.one("lock_outputs", **where)
        state = OutputsState.COLLECTING if before is None else OutputsState(before["state"])
        after = step_unless_late(OUTPUTS, state, new.event)
        if after is None:
            return OutputsWritten(state=state)
        await tx.run(
            "put_outputs",
            **where,
            host_id=host_id,
            state=str(after),
            digest=new.digest,
            files=new.files,
            bytes=new.bytes,
            left_out=to_json(new.left_out),
            left_more=new.left_more,
            reason=new.reason,
            now=now,
        )
        plans: tuple[str, ...] = ()
        if before is not None and before["digest"] not in ("", new.digest):
            given = {"project": task.project, "digest": before["digest"]}
            plans = tuple(row["plan"] for row in await tx.rows("drop_earlier_outputs", **given))
        return OutputsWritten(state=after, plans=plans)

    @reads
    async def list_outputs(
        self,
        tx: Tx,
        job_id: str,
        *,
        lost_seconds: float,
        attempt: int | None = None,
        rank: int | None = None,
        now: Now = None,
    ) -> list[OutputsRecord]:
        """Return the outputs of a job's attempts that began, by attempt and rank. Outputs of which
        nothing came yet are collecting; they are lost where their attempt is over and its host is
        gone, or has been silent for `lost_seconds`."""
        given = {"job_id": job_id, "attempt": attempt}
        told = await tx.list_of(OutputsRecord, "read_outputs", **given, rank=rank)
        places = await tx.list_of(
            OutputsPlace, "read_outputs_places", **given, lost_seconds=lost_seconds, now=now
        )
        known = {(record.attempt, record.rank) for record in told}
        silent = [
            OutputsRecord(
                job_id=job_id,
                attempt=place.attempt,
                rank=place.rank,
                host=place.host,
                state=OutputsState.LOST if place.gone and place.ended else OutputsState.COLLECTING,
                reason=_NOTHING_SENT if place.gone and place.ended else "",
            )
            for place in places
            if (place.attempt, place.rank) not in known and rank in (None, place.rank)
        ]
        return sorted([*told, *silent], key=lambda record: (record.attempt, record.rank))

    @transacts
    async def settle_outputs(self, tx: Tx, lost_seconds: float, *, now: Now = None) -> list[str]:
        """Settle the outputs that a lost host has not sent to their end. Return the jobs of these
        outputs."""
        given = {"lost_seconds": lost_seconds, "left_by": LEFT_BY, "now": now}
        rows = await tx.rows("lock_left_outputs", **given)
        if rows:
            await tx.run("settle_outputs", rows=to_json([_settle(row) for row in rows]))
        return sorted({row["job_id"] for row in rows})

    async def expire_outputs(self, keep_seconds: float, *, now: Now = None) -> int:
        """Release the bundles of outputs that are older than `keep_seconds`; return the number of
        the outputs. Rows of jobs that were pruned are deleted."""
        given = {"keep_seconds": keep_seconds, "now": now}
        rows = await self.session.transact(lambda tx: tx.rows("expire_outputs", **given))
        await self.session.transact(lambda tx: tx.run("drop_orphan_outputs"))
        return len(rows)


def _settle(row: dict[str, Any]) -> dict[str, Any]:
    """Return the state, and the reason, of outputs that a lost host did not send to their end."""
    sent = row["digest"] != ""
    until = f"{row['updated_at'].astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    event = OutputsEvent.LOSE if sent else OutputsEvent.MISS
    reason = f"its host was lost; this is what it had sent until {until}" if sent else _NOTHING_SENT
    where = {name: row[name] for name in ("job_id", "attempt", "rank")}
    state = step(OUTPUTS, OutputsState(row["state"]), event)
    return {**where, "state": str(state), "reason": reason}
