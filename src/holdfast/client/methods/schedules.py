"""Schedules: jobs that are submitted again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.client.late import LateModule
from holdfast.client.rest import PageCall, RestCall, ask
from holdfast.client.scripts import gives_list, gives_one
from holdfast.client.specs import merge_spec
from holdfast.core.arrays.records import ScheduleRecord, ScheduleRunRecord
from holdfast.core.bundles.code import CodeRef
from holdfast.core.records import JobRecord
from holdfast.core.spec import JobSpec
from holdfast.wire.schedules import ScheduleTimes

if TYPE_CHECKING:
    from holdfast.wire.operations.work import schedules as on_schedules
else:
    on_schedules = LateModule("holdfast.wire.operations.work.schedules")


class ScheduleMethods:
    """Schedules."""

    @gives_list
    def schedules(self, *, owner: str | None = None) -> PageCall[ScheduleRecord]:
        """Return every schedule, or those of one owner, by name."""
        return ask(on_schedules.LIST_SCHEDULES, owner=owner)

    @gives_one
    def schedule(self, name: str) -> RestCall[ScheduleRecord]:
        """Return one schedule and its newest run."""
        return ask(on_schedules.GET_SCHEDULE, name)

    @gives_one
    def put_schedule(
        self,
        name: str,
        /,
        spec: JobSpec | None = None,
        *,
        cron: str | None = None,
        every_seconds: float | None = None,
        time_zone: str = "UTC",
        catch_up: str = "one",
        overlap: str = "skip",
        **fields: Any,
    ) -> RestCall[ScheduleRecord]:
        """Make a schedule of a job, or replace the whole schedule of that name. Spec and fields are
        those of `submit`; the others are those of `core.schedules.ScheduleSpec`."""
        body = {
            "job": merge_spec(spec, fields),
            "cron": cron,
            "every_seconds": every_seconds,
            "time_zone": time_zone,
            "catch_up": catch_up,
            "overlap": overlap,
        }
        return ask(on_schedules.PUT_SCHEDULE, name, body=body)

    @gives_one
    def delete_schedule(self, name: str) -> RestCall[None]:
        """Forget a schedule; its jobs stay."""
        return ask(on_schedules.DELETE_SCHEDULE, name)

    @gives_one
    def pause_schedule(self, name: str, reason: str = "") -> RestCall[ScheduleRecord]:
        """Pause a schedule: none of its times submits a job until it is resumed."""

        return ask(on_schedules.PAUSE_SCHEDULE, name, body={"reason": reason})

    @gives_one
    def resume_schedule(self, name: str) -> RestCall[ScheduleRecord]:
        """Resume a schedule: its times submit jobs again, from now on."""
        return ask(on_schedules.RESUME_SCHEDULE, name)

    @gives_one
    def pin_schedule(self, name: str, code: CodeRef) -> RestCall[ScheduleRecord]:
        """Give the schedule's job other code from its next run on: the code that `send_code`
        returned."""
        return ask(on_schedules.PIN_SCHEDULE, name, body=code)

    @gives_one
    def run_schedule(self, name: str) -> RestCall[JobRecord]:
        """Submit the schedule's job now, beside its times."""

        return ask(on_schedules.RUN_SCHEDULE, name)

    @gives_one
    def schedule_times(self, name: str, count: int = 5) -> RestCall[ScheduleTimes]:
        """Return the schedule's next times."""
        return ask(on_schedules.LIST_NEXT, name, count=count)

    @gives_list
    def schedule_runs(self, name: str, limit: int = 100) -> PageCall[ScheduleRunRecord]:
        """Return the schedule's past times, newest first: each with its job, or with the reason why
        there is none."""
        return ask(on_schedules.LIST_RUNS, name, limit=limit)
