"""The jobs of a schedule: those of its due times, and the job that a person asks for now."""

import secrets
from datetime import datetime

import msgspec

from holdfast.controller.runtime.auth import make_new_id
from holdfast.controller.runtime.context import Controller
from holdfast.core.arrays.records import ScheduleRecord
from holdfast.core.arrays.schedules import PlannedRun, make_key
from holdfast.core.run_seed import SEED_BYTES, mint_secrets
from holdfast.moves.values import DueSchedule, NewJob, ScheduledRun, ScheduledRuns


def make_runs(due: DueSchedule, planned: tuple[PlannedRun, ...]) -> tuple[ScheduledRun, ...]:
    """Return the runs with their jobs; a run that must wait depends on the job of the run before
    it."""
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
    """Return the job of one due time. Its idempotency key is made of the schedule's id and the
    time."""
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
