"""Supervised jobs in PostgreSQL: their fallen members, and the places of replacements."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.causes import Cause
from holdfast.core.endings.replace import Replacement
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import JobPlacement
from holdfast.core.records import JobRecord, TaskRecord
from holdfast.moves.jobs import members
from holdfast.moves.jobs.requests import no_job, refuse_retry
from holdfast.moves.jobs.room import RoomCheck
from holdfast.moves.values import DueMember
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Tx
from holdfast.store.postgres.hosts import quarantine_host
from holdfast.store.postgres.jobs.admission import read_capacity
from holdfast.store.postgres.jobs.lists import read_jobs
from holdfast.store.postgres.moves import load_moves, write_moves


def _as_arrays(keys: Sequence[TaskKey]) -> dict[str, list[Any]]:
    return {
        "jobs": [key.job_id for key in keys],
        "ranks": [key.rank for key in keys],
        "epochs": [key.epoch for key in keys],
    }


class PostgresMembers(OnSession):
    """The falls and replacements of single members while the others run on, and the sections of
    ranks of any gang, because these excuse the ranks that wait for them (EXCUSE-1)."""

    async def tell_sections(
        self, host_id: str, told: Sequence[tuple[TaskKey, float]], *, now: Now = None
    ) -> None:
        """Write for how many seconds from now on the sections of ranks on this host excuse the
        silence of other ranks; 0: no longer. A key of a task that does not run there changes
        nothing."""
        given = {**_as_arrays([key for key, _ in told]), "seconds": [left for _, left in told]}
        await self.session.transact(
            lambda tx: tx.run("tell_sections", host=host_id, now=now, **given), relaxed=True
        )

    async def find_excuses(
        self, keys: Sequence[TaskKey], *, now: Now = None
    ) -> dict[TaskKey, float]:
        """Return rank → seconds for which the sections of other ranks still excuse it, which means
        that its silence does not count; ranks without an excuse are missing."""
        rows = await self.session.rows("find_excuses", now=now, **_as_arrays(keys))
        return {TaskKey(r["job_id"], r["rank"], r["epoch"]): r["seconds"] for r in rows}

    @reads
    async def list_members(self, tx: Tx, limit: int, *, now: Now = None) -> list[DueMember]:
        """Return the members of supervised jobs that need a decision: members that fell, and
        replacements that have not started yet."""
        found = await tx.rows("find_members", limit=limit, now=now)
        if not found:
            return []
        ids = sorted({row["job_id"] for row in found})
        jobs = await read_jobs(tx, ids)
        read = await tx.list_of(TaskRecord, "read_tasks", ids=ids)
        tasks = {(task.job_id, task.rank): task for task in read}
        return [
            DueMember(
                job=jobs[row["job_id"]],
                task=tasks[row["job_id"], row["rank"]],
                fallen=row["fallen"],
                seconds=row["seconds"],
            )
            for row in found
            if row["job_id"] in jobs and (row["job_id"], row["rank"]) in tasks
        ]

    @transacts
    async def replace_members(
        self, tx: Tx, plans: Sequence[tuple[TaskKey, Replacement]], *, now: Now = None
    ) -> list[TaskKey]:
        """Carry out the decisions on fallen members, in their order and in one transaction. Each
        member is `blocked` until it has another host (event task.replaced) or, if parked, until a
        person releases it (event task.parked); its charge and a barred host are written too. The
        fall of a member that is not to be replaced begins the drain of its job, as the drain's
        trigger.

        Return the keys whose decisions were carried out. Keys of jobs that drain, or that another
        call has decided on, are missing.
        """
        if not plans:
            return []
        locked = await _lock_suspects(tx, plans)
        at = await tx.now(now)
        m = await load_moves(tx, [key.job_id for key, _ in plans], at)
        done, suspects = members.replace_members(m, plans)
        await write_moves(tx, m)
        for host_id, reason in sorted(suspects.items()):
            if host_id in locked:
                await quarantine_host(tx, host_id, reason, at)
        return done

    @transacts
    async def unpark_members(
        self, tx: Tx, job_id: str, reason: str, *, now: Now = None
    ) -> JobRecord:
        """Place parked members again, for a person's `retry` of a job that goes on (event
        task.released). Raises Conflict where the job has no parked member, NotFound where there is
        no such job."""
        m = await load_moves(tx, [job_id], await tx.now(now))
        job = m.jobs.get(job_id)
        if job is None:
            raise no_job(job_id)
        if not members.unpark(m, job, reason):
            raise refuse_retry(job_id, job.state)
        await write_moves(tx, m)
        return (await read_jobs(tx, [job_id]))[job_id]

    @transacts
    async def stop_member(
        self, tx: Tx, key: TaskKey, cause: Cause, reason: str, *, now: Now = None
    ) -> bool:
        """Stop one live member while the other members run on. Return False where the key names no
        live member, or a member that is being stopped already."""
        m = await load_moves(tx, [key.job_id], await tx.now(now))
        job = m.jobs.get(key.job_id)
        task = None if job is None else m.tasks[job.id].get(key.rank)
        if (
            job is None
            or task is None
            or task.epoch != key.epoch
            or not members.may_stop(job, task)
        ):
            return False
        members.stop_member(m, job, task, cause, reason)
        await write_moves(tx, m)
        return True

    @transacts
    async def seat_members(
        self,
        tx: Tx,
        placements: Sequence[JobPlacement],
        ttls: Mapping[str, float],
        *,
        now: Now = None,
    ) -> list[str]:
        """Apply the placements of members that wait for a host, under the guards of `reserve`. The
        members of each job get a new epoch of their own (MEMBER-1), and their start barrier is
        open. Each member gets an event task.reserved. Returns job ids."""
        if not placements:
            return []
        # Locks in the one order: hosts, jobs, tasks.
        host_ids = sorted({t.host_id for p in placements for t in p.tasks})
        await tx.rows("lock_hosts", ids=host_ids)
        capacity = await read_capacity(tx, host_ids)
        room, names = RoomCheck(capacity), {host.host_id: host.name for host in capacity}
        m = await load_moves(tx, [p.job_id for p in placements], await tx.now(now))
        seated = []
        for placement in members.join_placements(placements):
            job = m.jobs.get(placement.job_id)
            if job is not None and members.may_seat(m, job, placement, room):
                members.seat_members(m, job, placement, ttls[job.id], names)
                seated.append(job.id)
        await write_moves(tx, m)
        return seated

    @transacts
    async def release_members(
        self, tx: Tx, reservation_seconds: float, *, now: Now = None
    ) -> list[str]:
        """Release reservations of replacements that were never offered to their host within
        `reservation_seconds`. Return the ids of their jobs."""
        at = await tx.now(now)
        before = members.asked_before(at, reservation_seconds)
        found = [row["id"] for row in await tx.rows("find_unoffered_members", before=before)]
        if not found:
            return []
        m = await load_moves(tx, found, at)
        released = [job.id for job in m.jobs.values() if members.release_unoffered(m, job, before)]
        await write_moves(tx, m)
        return released


async def _lock_suspects(tx: Tx, plans: Sequence[tuple[TaskKey, Replacement]]) -> set[str]:
    """Lock the hosts against which the ends of these members are evidence, because hosts' locks
    come before jobs'. A fallen member's host does not change."""
    keys = {key for key, plan in plans if plan.quarantine_host}
    if not keys:
        return set()
    rows = await tx.rows("read_tasks", ids=sorted({key.job_id for key in keys}))
    found = {
        row["host_id"]
        for row in rows
        if row["host_id"] is not None and TaskKey(row["job_id"], row["rank"], row["epoch"]) in keys
    }
    await tx.rows("lock_hosts", ids=sorted(found))
    return found
