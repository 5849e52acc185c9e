"""Schedules whose time has come → their jobs, once for each time (TIME-1)."""

import logging
import secrets
from datetime import datetime

import msgspec

from holdfast.controller.api.jobs import check_specs
from holdfast.controller.loops.silhouette import Loop, Summary
from holdfast.controller.runtime.auth import make_new_id
from holdfast.controller.runtime.context import Controller
from holdfast.core.run_seed import SEED_BYTES, mint_secrets
from holdfast.core.series.records import ScheduleRecord
from holdfast.core.series.schedules import PlannedRun, make_key, plan_runs
from holdfast.errors import HoldfastError, Stale, Unavailable
from holdfast.moves.values import DueSchedule, NewJob, ScheduledRun, ScheduledRuns

log = logging.getLogger("holdfast.loops")
LIMIT = 100


class SchedulesLoop(Loop):
    """Decides each time that has come. A schedule whose job cannot be submitted is told of, and
    holds up no other."""

    name = "schedules"
    topic = "schedules"
    interval_seconds = 1.0

    async def run_once(self) -> Summary:
        controller = self._controller
        found = await controller.store.schedules.list_due(LIMIT)
        if not found:
            return {}
        now = await controller.store.now()
        submitted = sum([await self._dispatch(due, now) for due in found])
        controller.poke("admit", "drain", "events")
        return {"due": len(found), "submitted": submitted}

    async def _dispatch(self, due: DueSchedule, now: datetime) -> int:
        schedule, store = due.schedule, self._controller.store
        try:
            plan = plan_runs(
                schedule.spec, schedule.next_at, now, anchor=schedule.anchor, busy=schedule.is_busy
            )
            runs = make_runs(due, plan.runs)
            jobs = [run.job for run in runs if run.job is not None]
            if jobs:
                await check_specs(self._controller, [schedule.spec.job], [""], owner=schedule.owner)
            written = await store.schedules.write_runs(
                ScheduledRuns(
                    schedule_id=schedule.id,
                    expected=schedule.next_at,
                    runs=runs,
                    next_at=plan.next_at,
                    cancel=schedule.last_job_id if plan.cancels else None,
                )
            )
        except (Unavailable, Stale):
            raise
        except HoldfastError as error:
            await self._refuse(schedule, now, error.message)
            return 0
        if plan.missed and written:
            log.warning("schedule %s: %d times were missed", schedule.name, plan.missed)
        return len(jobs) if written else 0

    async def _refuse(self, schedule: ScheduleRecord, now: datetime, reason: str) -> None:
        """Write that the job of this time could not be submitted, and go on to the next time; a
        schedule whose times cannot be told any more is paused."""
        log.warning("schedule %s: %s", schedule.name, reason)
        store = self._controller.store
        run = ScheduledRun(due_at=schedule.next_at, outcome="refused", reason=reason)
        try:
            plan = plan_runs(
                schedule.spec, schedule.next_at, now, anchor=schedule.anchor, busy=False
            )
        except HoldfastError:
            await store.schedules.pause_schedule(schedule.name, reason)
            return
        refused = ScheduledRuns(
            schedule_id=schedule.id, expected=schedule.next_at, runs=(run,), next_at=plan.next_at
        )
        await store.schedules.write_runs(refused)


def make_runs(due: DueSchedule, planned: tuple[PlannedRun, ...]) -> tuple[ScheduledRun, ...]:
    """Return the runs with their jobs; one that waits does so for the job before it."""
    runs: list[ScheduledRun] = []
    before = due.schedule.last_job_id
    for plan in planned:
        job = None
        if plan.outcome == "submitted":
            job = make_job(due, plan.due_at, after=before if plan.waits else None)
            before = job.id
        runs.append(
            ScheduledRun(due_at=plan.due_at, outcome=plan.outcome, reason=plan.reason, job=job)
        )
    return tuple(runs)


def make_job(due: DueSchedule, due_at: datetime, *, after: str | None) -> NewJob:
    """Return the job of one time: its key is the schedule's and the time's."""
    schedule = due.schedule
    spec = msgspec.structs.replace(
        schedule.spec.job,
        name=schedule.spec.job.name or schedule.name,
        secrets=dict(due.secrets),
        env={
            **schedule.spec.job.env,
            "HOLDFAST_SCHEDULE": schedule.name,
            "HOLDFAST_SCHEDULED_FOR": due_at.isoformat(),
        },
        idempotency_key=make_key(schedule.id, due_at),
        after=() if after is None else (f"{after}:any",),
    )
    minted = mint_secrets(spec, secrets.token_bytes(SEED_BYTES)) if spec.supervised else {}
    return NewJob(
        id=make_new_id(), spec=spec, queue=schedule.queue, owner=schedule.owner, minted=minted
    )


async def run_now(controller: Controller, schedule: ScheduleRecord) -> str:
    """Submit the schedule's job now, beside its times; return the job's id."""
    now = await controller.store.now()
    due = DueSchedule(
        schedule=schedule, secrets=await controller.store.schedules.read_secrets(schedule.name)
    )
    job = make_job(due, now, after=None)
    run = ScheduledRun(due_at=now, outcome="submitted", reason="asked for by a person", job=job)
    await controller.store.schedules.write_runs(
        ScheduledRuns(schedule_id=schedule.id, expected=None, runs=(run,), next_at=None)
    )
    controller.poke("admit", "events")
    return job.id
