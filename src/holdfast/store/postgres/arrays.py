"""Arrays in PostgreSQL."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from holdfast.core.arrays.arrays import IN_LINE, find_state, make_member, say_array, say_indices
from holdfast.core.arrays.records import ArrayRecord
from holdfast.core.causes import Cause
from holdfast.core.settings.resolve import Value
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.moves import arrays
from holdfast.moves.jobs import requests
from holdfast.moves.jobs.quotas import sets_quota
from holdfast.moves.rows import NewEvent
from holdfast.moves.values import Advanced, ArrayFilter, ArraySubmitted, NewArray, NewJob
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, transacts
from holdfast.store.postgres.connection.session import Session, Tx, to_json
from holdfast.store.postgres.dependencies import find_parents, say_waits, write_dependencies
from holdfast.store.postgres.jobs.lists import make_params
from holdfast.store.postgres.jobs.submissions import make_row
from holdfast.store.postgres.moves import load_moves, write_events, write_moves
from holdfast.store.postgres.settings import check_quotas

CHUNK = 1000
SUBMIT_SECONDS = 120.0


class PostgresArrays(OnSession):
    """Arrays: one submission, many jobs, one line of state. The members are jobs like others."""

    def __init__(self, session: Session, environment: Mapping[str, Value]) -> None:
        super().__init__(session)
        self.environment = environment

    async def submit_array(self, array: NewArray, *, now: Now = None) -> ArraySubmitted:
        """Write an array and all of its members, or nothing.

        Raises:
            Conflict: its idempotency key names an array that differs (code "idempotency_mismatch").
            QuotaExceeded: the project's quota forbids so many jobs (QUOTA-1).
            ValidationError: a job that it is to wait for, or its queue, does not exist.
        """
        work = partial(self._submit, array, now)
        return await self.session.transact(work, seconds=SUBMIT_SECONDS)

    async def _submit(self, array: NewArray, now: datetime | None, tx: Tx) -> ArraySubmitted:
        at, spec = await tx.now(now), array.spec
        parents = await find_parents(tx, [spec])
        held = say_waits(spec, parents) if spec.after else ""
        if not await tx.rows("hold_queues", names=[array.queue]):
            raise requests.refuse_queue(array.queue)
        row = {
            "id": array.id, "name": spec.title, "owner": array.owner, "project": spec.project, "queue": array.queue,
            "spec": to_json(spec.without_secrets()), "digest": array.digest,
            "key": spec.idempotency_key, "indices": say_indices([m.index for m in array.members]),
            "size": len(array.members), "at_once": array.at_once, "held": held, "now": at,
            "lined": bool(held) or array.at_once is not None,
        }  # fmt: skip
        if await tx.one("insert_array", **row) is None:
            place = {"id": array.id, "project": spec.project, "key": spec.idempotency_key}
            earlier = await tx.one("find_earlier_array", **place) or {}
            if earlier.get("digest") != array.digest:
                before = await _read_one(tx, earlier.get("id", array.id))
                raise arrays.refuse_array(before, array)
            return ArraySubmitted(array=await _read_one(tx, earlier["id"]), created=False)
        await self._insert_members(tx, array, held, at)
        event = NewEvent(
            kind="array.submitted",
            queue=array.queue,
            project=spec.project,
            message=f"array {array.id} ({spec.title}) of {len(array.members)} jobs",
            data={
                "array": array.id,
                "name": spec.title,
                "owner": array.owner,
                "size": len(array.members),
            },
        )
        await write_events(tx, [event], at)
        if spec.after:
            await write_dependencies(tx, {array.id: spec}, parents, at)
        if row["lined"]:
            await _advance(tx, array.id, CHUNK, at)
        return ArraySubmitted(array=await _read_one(tx, array.id), created=True)

    async def _insert_members(self, tx: Tx, array: NewArray, held: str, at: datetime) -> None:
        spec, size = array.spec, len(array.members)
        waits: dict[str, Any] = {}
        if held or array.at_once is not None:
            turn = arrays.say_turn(spec.title, array.at_once)
            waits = {"wait_cause": IN_LINE, "wait_reason": held or turn}
        given = {
            "names": [array.queue],
            "now": at,
            "submitted": requests.SUBMITTED,
            "waits": requests.WAITS_FOR_START,
            "limited_too": True,
            "silent": True,
        }
        pairs = list(zip(array.members, array.member_ids, strict=True))
        for start in range(0, size, CHUNK):
            rows = []
            for member, job_id in pairs[start : start + CHUNK]:
                own = make_member(spec, array.id, size, member)
                row = make_row(
                    NewJob(id=job_id, spec=own, queue=array.queue, owner=array.owner), array.digest
                )
                rows.append(row | waits | {"array_id": array.id, "array_index": member.index})
            await tx.run("insert_jobs", **given, rows=to_json(rows))
        if sets_quota(self.environment) or await tx.value("look_for_quotas"):
            asked = [(spec.project, spec.gpus * spec.tasks)] * size
            await check_quotas(tx, asked, self.environment, written=array.member_ids)

    async def get_array(self, array_id: str) -> ArrayRecord:
        """Return an array. Raises NotFound."""
        return await self.session.single(lambda tx: _read_one(tx, array_id))

    async def list_arrays(self, filter: ArrayFilter) -> list[ArrayRecord]:
        """Return the arrays that pass the filter, newest first."""
        rows = await self.session.rows("list_arrays", **make_params(filter), ids=None)
        return [_as_record(row) for row in rows]

    async def find_members(self, array_id: str, indices: Collection[int]) -> dict[int, str]:
        """Return index → job id; indices without a member are missing."""
        rows = await self.session.rows("find_array_members", id=array_id, indices=list(indices))
        return {row["array_index"]: row["id"] for row in rows}

    @transacts
    async def cancel_array(
        self, tx: Tx, array_id: str, reason: str, *, hard: bool = False, now: Now = None
    ) -> ArrayRecord:
        """Note that every unfinished member is to be cancelled. `advance_arrays` cancels the
        members in batches, even if the caller has gone meanwhile. Raises NotFound."""
        if await tx.one("lock_array", id=array_id) is None:
            raise requests.no_array(array_id)
        await tx.run("cancel_array", id=array_id, reason=reason, hard=hard)
        return await _read_one(tx, array_id)

    async def retry_array(self, array_id: str, reason: str, *, now: Now = None) -> int:
        """Give each member that has failed another attempt, as `revive_job` does; return how many
        members.

        Raises:
            Conflict: the array is being cancelled. NotFound. QuotaExceeded.
        """
        record = await self.get_array(array_id)
        found = await self.session.rows("find_failed", id=array_id)
        ids, done = [row["id"] for row in found], 0
        for start in range(0, max(len(ids), 1), CHUNK):  # at least once, for the checks
            chunk = ids[start : start + CHUNK]
            done += await self.session.transact(
                partial(self._revive, array_id, chunk, record.spec, reason, now)
            )
        return done

    async def _revive(
        self,
        array_id: str,
        ids: Sequence[str],
        spec: JobSpec,
        reason: str,
        now: datetime | None,
        tx: Tx,
    ) -> int:
        array = await tx.one("lock_array", id=array_id)
        if array is None:
            raise requests.no_array(array_id)
        if array["cancel_reason"] is not None:
            raise arrays.refuse_retry(array_id)
        await tx.run("line_array", id=array_id)
        m = await load_moves(tx, ids, await tx.now(now))
        failed = [job for job in m.jobs.values() if job.state is JobState.FAILED]
        asked = [(spec.project, spec.gpus * spec.tasks)] * len(failed)
        await check_quotas(tx, asked, self.environment, written=[])
        for job in failed:
            requests.revive(m, job, reason, made=None)
        await write_moves(tx, m)
        return len(failed)

    async def advance_arrays(
        self, limit: int = 500, *, only: str | None = None, now: Now = None
    ) -> Advanced:
        """Release members whose turn has come (ARRAY-1), and cancel the members of arrays that are
        being cancelled, at most `limit` of each array. only: the one array to look at."""
        done = Advanced()
        for row in await self.session.rows("find_working_arrays", only=only):

            async def work(tx: Tx, array_id: str = row["id"]) -> Advanced:
                return await _advance(tx, array_id, limit, await tx.now(now))

            found = await self.session.transact(work)
            done = Advanced(
                released=done.released + found.released,
                cancelled=done.cancelled + found.cancelled,
                left=done.left or found.left,
            )
        return done


async def _advance(tx: Tx, array_id: str, limit: int, at: datetime) -> Advanced:
    """Release or cancel at most `limit` members of one array, under its lock."""
    array = await tx.one("lock_array", id=array_id)
    if array is None:
        return Advanced()
    if array["cancel_reason"] is not None:
        return await _cancel_some(tx, array, limit, at)
    if not array["lined"] or array["held"]:
        return Advanced()
    room, most = limit, array["at_once"]
    if most is not None:
        room = min(limit, most - int(await tx.value("count_active", id=array_id)))
    if room <= 0:
        return Advanced()
    ids = [row["id"] for row in await tx.rows("find_in_line", id=array_id, limit=room)]
    m = await load_moves(tx, ids, at)
    released = arrays.release_in_line(m)
    await write_moves(tx, m)
    if len(ids) < room:
        await tx.run("clear_line", id=array_id)
    return Advanced(released=released, left=len(ids) == limit)


async def _cancel_some(tx: Tx, array: Mapping[str, Any], limit: int, at: datetime) -> Advanced:
    asked = {"id": array["id"], "hard": array["cancel_hard"], "limit": limit}
    ids = [row["id"] for row in await tx.rows("find_uncancelled", **asked)]
    if not ids:
        await tx.run("end_cancel", id=array["id"])
        return Advanced()
    m = await load_moves(tx, ids, at)
    cause = Cause(array["cancel_cause"])
    arrays.cancel_members(m, array["cancel_reason"], cause, hard=array["cancel_hard"])
    await write_moves(tx, m)
    return Advanced(cancelled=len(ids), left=True)


async def _read_one(tx: Tx, array_id: str) -> ArrayRecord:
    asked = make_params(ArrayFilter(limit=1)) | {"ids": [array_id]}
    row = await tx.one("list_arrays", **asked)
    if row is None:
        raise requests.no_array(array_id)
    return _as_record(row)


def _as_record(row: dict[str, Any]) -> ArrayRecord:
    counts, held = row["counts"], row.pop("held")
    cancel = row.pop("cancel_reason")
    said = f"it is being cancelled: {cancel}" if cancel is not None else held
    return msgspec.convert(
        row
        | {
            "state": find_state(counts),
            "reason": say_array(counts, row["at_once"], row["active"], said),
            "failed": say_indices(row["failed"]),
        },
        ArrayRecord,
    )
