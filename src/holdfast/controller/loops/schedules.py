"""Schedules whose time has come → their jobs, once for each time (TIME-1)."""

import logging
from datetime import datetime

from holdfast.controller.api.jobs import check_specs
from holdfast.controller.api.schedule_runs import make_runs
from holdfast.controller.loops.loop import Loop, Summary
from holdfast.core.arrays.records import ScheduleRecord
from holdfast.core.arrays.schedules import plan_runs
from holdfast.errors import HoldfastError, Stale, Unavailable
from holdfast.moves.values import DueSchedule, ScheduledRun, ScheduledRuns

log = logging.getLogger("holdfast.loops")
LIMIT = 100


class SchedulesLoop(Loop):
    """Submits the job of each due time. A schedule whose job cannot be submitted records the
    reason, and delays no other."""

    name = "schedules"
    topic = "schedules"
    by_look = True
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
        """Record that the job of this time could not be submitted, and continue with the next time.
        A schedule whose next time cannot be computed any more is paused."""
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
