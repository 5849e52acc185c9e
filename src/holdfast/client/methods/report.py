"""Reports: where the hours went, and which GPUs are held for nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.client.late import LateModule, on_reports
from holdfast.client.rest import PageCall, RestCall, ask
from holdfast.client.scripts import gives_list, gives_one

if TYPE_CHECKING:
    from holdfast.core.report import idle, money, rows
    from holdfast.wire import api
else:
    idle, rows = LateModule("holdfast.core.report.idle"), LateModule("holdfast.core.report.rows")
    money, api = LateModule("holdfast.core.report.money"), LateModule("holdfast.wire.api")


class ReportMethods:
    """The client's methods about what hours were spent on."""

    @gives_one
    def report(
        self,
        *,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        by: Sequence[str] = ("project",),
        step: str = "day",
        zone: str = "UTC",
        unit: str = "gpu",
        job: str | None = None,
        owner: str | None = None,
        project: str | None = None,
        queue: str | None = None,
        pool: str | None = None,
        host: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 100,
    ) -> RestCall[rows.HoursReport]:
        """Return what hours were spent on, what they cost, and what was lost, with what would mend
        it.

        since, until: times, or Unix seconds; without them, the last 7 days. by: what its lines are
        told by: job, owner, project, queue, pool, host, label:KEY, or time in stretches of `step`
        (minute, hour, day). zone: the time zone whose days these are. unit: gpu or cpu. The others choose
        the jobs.
        """
        return ask(
            on_reports.GET_REPORT,
            since=_read_moment(since),
            until=_read_moment(until),
            by=tuple(by),
            step=step,
            zone=zone,
            unit=unit,
            job=job,
            owner=owner,
            project=project,
            queue=queue,
            pool=pool,
            host=host,
            label=tuple(f"{name}={value}" for name, value in (labels or {}).items()),
            limit=limit,
        )

    @gives_one
    def set_price(
        self,
        gpu_hour_usd: float | None,
        *,
        host: str = "",
        since: datetime | float | None = None,
        dry_run: bool = False,
    ) -> RestCall[money.PriceEffect]:
        """Set the price of a GPU-hour on a host, or on all hosts that name none themselves, and return
        what it does to hours on record. Needs an admin token.

        gpu_hour_usd: None takes the price away. since: the time, or Unix seconds, from which it holds; None
        for now. dry_run: write nothing.
        """
        body = api.PriceRequest(
            host=host, gpu_hour_usd=gpu_hour_usd, since=_read_moment(since), dry_run=dry_run
        )
        return ask(on_reports.PUT_PRICE, body=body)

    @gives_list
    def idle_jobs(
        self, *, project: str | None = None, owner: str | None = None
    ) -> PageCall[idle.IdleJob]:
        """Return the jobs that hold idle GPUs, the dearest first."""
        return ask(on_reports.LIST_IDLE_JOBS, project=project, owner=owner)


def _read_moment(at: datetime | float | None) -> int | None:
    if at is None:
        return None
    return int(at.timestamp() if isinstance(at, datetime) else at)
