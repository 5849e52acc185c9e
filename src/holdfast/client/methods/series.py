"""Jobs that come in series: arrays, sweeps and schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.client.calls import PageCall, RestCall, delete, get, get_pages, path_of, send
from holdfast.client.scripts import gives_each, gives_list, gives_one
from holdfast.client.specs import keyed, merge_spec
from holdfast.core.records import JobRecord
from holdfast.core.spec import JobSpec

if TYPE_CHECKING:
    from holdfast.core.series.records import ArrayRecord, ScheduleRecord, ScheduleRunRecord
    from holdfast.wire.series.schedules import ScheduleTimes


class SeriesMethods:
    """The client's methods about arrays and schedules."""

    @gives_one
    def submit_array(
        self, array: str, /, spec: JobSpec | None = None, **fields: Any
    ) -> RestCall[ArrayRecord]:
        """Submit a job many times, once for each index of `array`, as "0-999%50".

        Each member has HOLDFAST_ARRAY_INDEX, HOLDFAST_ARRAY_ID and HOLDFAST_ARRAY_SIZE. Spec and
        fields are those of `submit`.
        """
        return _send_array({"array": array}, spec, fields)

    @gives_one
    def submit_sweep(
        self,
        sweep: Mapping[str, Any],
        /,
        spec: JobSpec | None = None,
        *,
        at_once: int | None = None,
        **fields: Any,
    ) -> RestCall[ArrayRecord]:
        """Submit a job once for each point of a grid, `{"grid": {"lr": [1e-3, 1e-4]}}`.

        Parameters take the place of `{lr}` in the command, and stand in HOLDFAST_PARAM_LR.
        """
        return _send_array({"sweep": dict(sweep), "at_once": at_once}, spec, fields)

    @gives_one
    def array(self, array_id: str) -> RestCall[ArrayRecord]:
        """Return one array; its members are `jobs(array=array_id)`."""
        from holdfast.core.series.records import ArrayRecord

        return get(path_of("arrays", array_id), ArrayRecord)

    @gives_each
    def arrays(
        self,
        *,
        states: Sequence[str] = (),
        queue: str | None = None,
        project: str | None = None,
        owner: str | None = None,
        name: str | None = None,
        prefix: str | None = None,
        page_size: int | None = None,
    ) -> PageCall[ArrayRecord]:
        """Yield arrays, newest first; `states`: with a member in one of them."""
        from holdfast.core.series.records import ArrayRecord

        return get_pages(
            path_of("arrays"),
            ArrayRecord,
            state=list(states),
            queue=queue,
            project=project,
            owner=owner,
            name=name,
            prefix=prefix,
            limit=page_size,
        )

    @gives_one
    def cancel_array(
        self, array_id: str, reason: str = "", *, hard: bool = False
    ) -> RestCall[ArrayRecord]:
        """Cancel every member that has not ended."""
        from holdfast.core.series.records import ArrayRecord
        from holdfast.wire.api import CancelRequest

        body = CancelRequest(reason=reason, hard=hard)
        return send("POST", path_of("arrays", array_id, "cancel"), ArrayRecord, body)

    @gives_one
    def retry_array(self, array_id: str) -> RestCall[ArrayRecord]:
        """Give each failed member another attempt, with new budgets."""
        from holdfast.core.series.records import ArrayRecord

        path = path_of("arrays", array_id, "retry")
        return send("POST", path, ArrayRecord, repeatable=False)

    @gives_list
    def schedules(self, *, owner: str | None = None) -> PageCall[ScheduleRecord]:
        """Return every schedule, or those of one owner, by name."""
        from holdfast.core.series.records import ScheduleRecord

        return get_pages(path_of("schedules"), ScheduleRecord, owner=owner)

    @gives_one
    def schedule(self, name: str) -> RestCall[ScheduleRecord]:
        """Return one schedule and its newest run."""
        from holdfast.core.series.records import ScheduleRecord

        return get(path_of("schedules", name), ScheduleRecord)

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
        """Make a schedule of a job, or change the one of that name whole. Spec and fields are those
        of `submit`; the others are those of `core.series.schedules.ScheduleSpec`."""
        from holdfast.core.series.records import ScheduleRecord

        body = {
            "job": merge_spec(spec, fields),
            "cron": cron,
            "every_seconds": every_seconds,
            "time_zone": time_zone,
            "catch_up": catch_up,
            "overlap": overlap,
        }
        return send("PUT", path_of("schedules", name), ScheduleRecord, body)

    @gives_one
    def delete_schedule(self, name: str) -> RestCall[None]:
        """Forget a schedule; its jobs stay."""
        return delete(path_of("schedules", name))

    @gives_one
    def pause_schedule(self, name: str, reason: str = "") -> RestCall[ScheduleRecord]:
        """Let no time of it come until it is resumed."""
        from holdfast.core.series.records import ScheduleRecord

        path = path_of("schedules", name, "pause")
        return send("POST", path, ScheduleRecord, {"reason": reason})

    @gives_one
    def resume_schedule(self, name: str) -> RestCall[ScheduleRecord]:
        """Let its times come again, from now on."""
        from holdfast.core.series.records import ScheduleRecord

        return send("POST", path_of("schedules", name, "resume"), ScheduleRecord)

    @gives_one
    def run_schedule(self, name: str) -> RestCall[JobRecord]:
        """Submit its job now, beside its times."""
        path = path_of("schedules", name, "run")
        return send("POST", path, JobRecord, repeatable=False)

    @gives_one
    def schedule_times(self, name: str, count: int = 5) -> RestCall[ScheduleTimes]:
        """Return its times to come."""
        from holdfast.wire.series.schedules import ScheduleTimes

        return get(path_of("schedules", name, "next"), ScheduleTimes, count=count)

    @gives_list
    def schedule_runs(self, name: str, limit: int = 100) -> PageCall[ScheduleRunRecord]:
        """Return what became of its times, newest first."""
        from holdfast.core.series.records import ScheduleRunRecord

        return get_pages(path_of("schedules", name, "runs"), ScheduleRunRecord, limit=limit)


def _send_array(
    how: dict[str, Any], spec: JobSpec | None, fields: Mapping[str, Any]
) -> RestCall[ArrayRecord]:
    from holdfast.core.series.records import ArrayRecord

    body = {"job": keyed(merge_spec(spec, fields)), **how}
    return send("POST", path_of("arrays"), ArrayRecord, body)
