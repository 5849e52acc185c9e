"""Schedules in PostgreSQL."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.core.arrays.records import ScheduleRecord, ScheduleRunRecord
from holdfast.core.arrays.schedules import ScheduleSpec
from holdfast.core.settings.resolve import Value
from holdfast.moves.jobs import requests
from holdfast.moves.schedules import hide_secrets, no_schedule, run_event, schedule_event
from holdfast.moves.values import DueSchedule, NewSchedule, ScheduledRuns
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, transacts
from holdfast.store.postgres.connection.session import Session, Tx, to_json
from holdfast.store.postgres.jobs.submissions import insert_jobs
from holdfast.store.postgres.moves import load_moves, write_events, write_moves

PRUNE_BATCH = 1000


class PostgresSchedules(OnSession):
    """Schedules and their runs."""

    def __init__(self, session: Session, environment: Mapping[str, Value]) -> None:
        super().__init__(session)
        self.environment = environment

    @transacts
    async def put_schedule(
        self, tx: Tx, schedule: NewSchedule, *, now: Now = None
    ) -> ScheduleRecord:
        """Make a schedule, or change the schedule of that name, which keeps its id and its runs.
        Its next time and its anchor change only where its timing changes."""
        at, spec = await tx.now(now), schedule.spec
        if not await tx.rows("hold_queues", names=[schedule.queue]):
            raise requests.refuse_queue(schedule.queue)
        row = await tx.one("lock_schedule", id=None, name=schedule.name)
        before = None if row is None else msgspec.convert(row["spec"], ScheduleSpec)
        timed = before is None or before.timing != spec.timing
        await tx.run(
            "put_schedule",
            id=schedule.id,
            name=schedule.name,
            owner=schedule.owner,
            project=spec.job.project,
            queue=schedule.queue,
            spec=to_json(hide_secrets(spec)),
            secrets=to_json(spec.job.secrets),
            now=at,
            next_at=schedule.next_at,
            timed=timed,
        )
        what = "created" if before is None else "changed"
        await _tell(tx, what, schedule.name, spec.job.project, schedule.queue, at)
        return await _read_one(tx, schedule.name)

    async def get_schedule(self, name: str) -> ScheduleRecord:
        """Return a schedule. Raises NotFound."""
        return await self.session.single(lambda tx: _read_one(tx, name))

    async def read_secrets(self, name: str) -> dict[str, str]:
        """Return the secrets of a schedule's job. Raises NotFound."""
        row = await self.session.single(lambda tx: tx.one("read_schedule_secrets", name=name))
        if row is None:
            raise no_schedule(name)
        found: dict[str, str] = row["secrets"]
        return found

    async def list_schedules(self) -> list[ScheduleRecord]:
        """Return all schedules by name."""
        return await self.session.list_of(ScheduleRecord, "read_schedules", name=None)

    @transacts
    async def delete_schedule(self, tx: Tx, name: str, *, now: Now = None) -> None:
        """Forget a schedule and its runs; their jobs stay. Raises NotFound."""
        row = await _lock(tx, name)
        await tx.many(
            ("delete_schedule_runs", {"id": row["id"]}), ("delete_schedule", {"id": row["id"]})
        )
        await _tell(tx, "deleted", name, row["project"], row["queue"], await tx.now(now))

    @transacts
    async def pause_schedule(
        self, tx: Tx, name: str, reason: str, *, now: Now = None
    ) -> ScheduleRecord:
        """Pause a schedule, so that it makes no runs until it is resumed. Raises NotFound."""
        row, at = await _lock(tx, name), await tx.now(now)
        await tx.run("pause_schedule", id=row["id"], reason=reason, now=at)
        if row["paused_at"] is None:
            await _tell(tx, "paused", name, row["project"], row["queue"], at, reason)
        return await _read_one(tx, name)

    @transacts
    async def resume_schedule(
        self, tx: Tx, name: str, next_at: datetime, *, now: Now = None
    ) -> ScheduleRecord:
        """Resume a schedule, from `next_at` on; the times of the pause are not caught up. Raises
        NotFound."""
        row, at = await _lock(tx, name), await tx.now(now)
        if await tx.run("resume_schedule", id=row["id"], next_at=next_at):
            await _tell(tx, "resumed", name, row["project"], row["queue"], at)
        return await _read_one(tx, name)

    async def list_due(self, limit: int = 100, *, now: Now = None) -> list[DueSchedule]:
        """Return schedules whose time has come, the longest due first."""
        return [
            DueSchedule(secrets=row.pop("secrets"), schedule=msgspec.convert(row, ScheduleRecord))
            for row in await self.session.rows("find_due_schedules", limit=limit, now=now)
        ]

    @transacts
    async def write_runs(self, tx: Tx, runs: ScheduledRuns, *, now: Now = None) -> bool:
        """Write runs, submit their jobs, and set the next time, in one transaction (TIME-1).

        Returns False, and changes nothing, where the schedule is gone or paused, or has another
        next time than was expected.

        Raises:
            ValidationError, QuotaExceeded, Conflict: as `submit_jobs`; nothing is written.
        """
        at = await tx.now(now)
        row = await tx.one("lock_schedule", id=runs.schedule_id, name=None)
        if row is None:
            return False
        if runs.expected is not None and (row["paused_at"] or row["next_at"] != runs.expected):
            return False
        if runs.cancel is not None:
            m = await load_moves(tx, [runs.cancel], at)
            for job in m.jobs.values():
                text = f"schedule {row['name']} starts its next run"
                requests.cancel(m, job, text, hard=False)
            await write_moves(tx, m)
        for run in runs.runs:
            job_id = None
            if run.job is not None:  # one by one, because each may wait for the one before
                (submitted,) = await insert_jobs(tx, [run.job], self.environment, at)
                job_id = submitted.job.id
            given = {"due_at": run.due_at, "outcome": run.outcome, "reason": run.reason}
            await tx.run(
                "insert_schedule_run", schedule_id=row["id"], now=at, job_id=job_id, **given
            )
        await write_events(tx, [run_event(row, run) for run in runs.runs], at)
        last = runs.runs[-1] if runs.runs else None
        jobs = [run.job.id for run in runs.runs if run.job is not None]
        await tx.run(
            "note_run",
            id=row["id"],
            next_at=runs.next_at,
            now=at,
            ran=last is not None,
            outcome=last and last.outcome,
            reason=last.reason if last else "",
            job_id=jobs[-1] if jobs else None,
        )
        return True

    async def list_runs(self, name: str, *, limit: int = 100) -> list[ScheduleRunRecord]:
        """Return a schedule's runs, newest first. Raises NotFound."""
        schedule = await self.get_schedule(name)
        return await self.session.list_of(
            ScheduleRunRecord, "list_schedule_runs", id=schedule.id, limit=limit
        )

    @transacts
    async def prune_runs(self, tx: Tx, history_days: float, *, now: Now = None) -> int:
        """Delete runs that are older than `history_days`; return how many."""
        before = await tx.now(now) - timedelta(days=history_days)
        return await tx.run("prune_schedule_runs", before=before, limit=PRUNE_BATCH)


async def _lock(tx: Tx, name: str) -> dict[str, Any]:
    row = await tx.one("lock_schedule", id=None, name=name)
    if row is None:
        raise no_schedule(name)
    return row


async def _read_one(tx: Tx, name: str) -> ScheduleRecord:
    found = await tx.find(ScheduleRecord, "read_schedules", name=name)
    if found is None:
        raise no_schedule(name)
    return found


async def _tell(
    tx: Tx, what: str, name: str, project: str, queue: str, at: datetime, reason: str = ""
) -> None:
    text = f"schedule {name} was {what}" + (f": {reason}" if reason else "")
    await write_events(tx, [schedule_event(what, name, project, queue, text)], at)
