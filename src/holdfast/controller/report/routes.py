"""The routes of reports: where the hours went, and which GPUs are held for nothing."""

from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.owners import name_caller
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.controller.report.sums import find_effect, find_idle_policy, read_prices, read_report
from holdfast.core.arrays.schedules import read_zone
from holdfast.core.report.idle import IdleJob, find_drain
from holdfast.core.report.money import HostPrice
from holdfast.errors import ValidationError
from holdfast.wire.api import PriceRequest
from holdfast.wire.operations.cluster.reports import IdleQuery, ReportQuery

LEAST_IDLE_SECONDS = 300.0
"""A job is listed once its GPUs were idle for so long, or once people were told, whichever is first."""


async def get_report(call: ApiCall) -> Response:
    """Return what hours were spent on, what they cost, and what was lost."""
    query = name_caller(call, call.query(ReportQuery))
    now = await call.store.now()
    until = now if query.until is None else _read_moment(query.until)
    since = until - timedelta(days=7) if query.since is None else _read_moment(query.since)
    if since >= until:
        raise ValidationError("a report's span begins before it ends: since < until", field="since")
    if len(set(query.by)) < len(query.by):
        raise ValidationError("each field of a report's lines is named once", field="by")
    fields = ("job", "owner", "project", "queue", "pool", "host")
    filters = {name: value for name in fields if (value := getattr(query, name)) is not None}
    for pair in query.label:
        name, _, value = pair.partition("=")
        filters[f"label:{name}"] = value
    report = await read_report(
        call.store,
        await read_prices(call.store),
        since,
        until,
        by=query.by or ("project",),
        step=query.step,
        unit=query.unit,
        filters=filters,
        limit=query.limit,
        zone=None if query.zone == "UTC" else read_zone(query.zone, "zone"),
    )
    return answer_json(report)


async def put_price(call: ApiCall) -> Response:
    """Set a price of GPU-hours, and say what it does to hours on record (PRICE-4)."""
    asked = await call.body(PriceRequest)
    now = await call.store.now()
    since = now if asked.since is None else _read_moment(asked.since)
    if since > now:
        raise ValidationError("a price holds from now or from an earlier time on", field="since")
    price = HostPrice(host=asked.host, gpu_hour_usd=asked.gpu_hour_usd, since=since)
    settings = await call.controller.settings.refresh()
    effect = await find_effect(call.store, settings, price, since, now)
    if not asked.dry_run:
        await call.store.money.set_price(price)
        await call.controller.settings.refresh()
        call.controller.poke("budgets", "events")
    return answer_json(effect)


async def list_idle_jobs(call: ApiCall) -> Response:
    """List the jobs that hold idle GPUs, the dearest first."""
    query = name_caller(call, call.query(IdleQuery))
    settings = await call.controller.settings.current()
    found = {one.job_id: one for one in await call.store.money.read_idle_gpus()}
    jobs = await call.store.jobs.get_jobs(found)
    shown = []
    for job_id, idle in found.items():
        job = jobs.get(job_id)
        if job is None or job.epoch != idle.epoch:
            continue
        if idle.told_at is None and idle.seconds < LEAST_IDLE_SECONDS:
            continue
        if query.project not in (None, job.project) or query.owner not in (None, job.owner):
            continue
        policy = find_idle_policy(settings, job)
        shown.append(
            IdleJob(
                job_id=job.id,
                name=job.name,
                project=job.project,
                owner=job.owner,
                queue=job.queue,
                gpus=idle.gpus,
                idle_seconds=idle.seconds,
                usd=idle.usd,
                told_at=idle.told_at,
                policy=policy.then,
                drain_at=find_drain(idle, policy),
            )
        )
    shown.sort(key=lambda one: (-(one.usd or 0.0), -one.gpus * one.idle_seconds, one.job_id))
    return answer_page(shown)


def _read_moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
