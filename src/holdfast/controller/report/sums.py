"""The ledger's sums with their prices, read for reports, budgets and idle GPUs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec

from holdfast.controller.runtime.settings import Settings
from holdfast.core.ledger.values import LOSSES, JobLosses, Step, Unit
from holdfast.core.records import JobRecord
from holdfast.core.report.budgets import MonthBudget, begin_month
from holdfast.core.report.idle import IdlePolicy
from holdfast.core.report.losses import MAX_LINES, LossLine, list_losses
from holdfast.core.report.money import HOUR_MS, HostPrice, PricedSpan, PriceEffect, Prices
from holdfast.core.report.rows import (
    HoursReport,
    ReportRow,
    find_rate,
    list_asked,
    make_rows,
    name_rows,
)
from holdfast.store.postgres.store import PostgresStore


async def read_prices(store: PostgresStore) -> Prices:
    """Return the prices of all hosts."""
    return Prices(await store.money.read_prices())


async def read_spent(
    store: PostgresStore, prices: Prices, since: datetime, until: datetime
) -> dict[str, float]:
    """Return the dollars that each project's jobs have cost; hours without a price are left out."""
    spent: dict[str, float] = {}
    units: tuple[Unit, ...] = ("gpu", "cpu") if prices.has_slots else ("gpu",)
    priced = PricedSpan(prices, since, until)
    for unit in units:
        for each in await store.ledger.read_sums(
            since, until, by=("project", "host"), unit=unit, cuts=priced.cuts
        ):
            project, host = each.key[:2]
            usd = priced.find_usd(host, unit, each)
            if project and usd:
                spent[project] = spent.get(project, 0.0) + usd
    return spent


async def find_effect(
    store: PostgresStore, settings: Settings, price: HostPrice, since: datetime, now: datetime
) -> PriceEffect:
    """Return what a price would do to hours on record, from `since` until now."""
    before = await read_prices(store)
    after = before.add(msgspec.structs.replace(price, since=since))
    costs = [sum((await read_spent(store, each, since, now)).values()) for each in (before, after)]
    month = begin_month(now)
    spent = [await read_spent(store, each, month, now) for each in (before, after)]
    crossed = []
    for project, usd in sorted(spent[1].items()):
        budget = find_budget(settings, project)
        if budget is not None and spent[0].get(project, 0.0) < budget.usd <= usd:
            crossed.append(f"project {project} has spent ${usd:,.2f} of ${budget.usd:,.2f}")
    return PriceEffect(
        host=price.host,
        since=since,
        before_usd=costs[0],
        after_usd=costs[1],
        crossed=tuple(crossed),
    )


def find_budget(settings: Settings, project: str) -> MonthBudget | None:
    """Return a project's budget in force, None without one."""
    usd = settings.value("budget_usd_per_month", project=project)
    if not isinstance(usd, (int, float)):
        return None
    return MonthBudget(usd=float(usd), at=str(settings.value("at_budget", project=project)))


async def read_report(
    store: PostgresStore,
    prices: Prices,
    since: datetime,
    until: datetime,
    *,
    by: Sequence[str],
    step: Step,
    unit: Unit,
    filters: Mapping[str, str],
    limit: int,
    zone: ZoneInfo | None = None,
) -> HoursReport:
    """Return the report of `[since, until)`, with times and days of `zone`, or of UTC. Raises
    ValidationError for a field that there is not."""
    only = dict(filters)
    since, until, kept = await store.ledger.read_counted(since, until)
    priced = PricedSpan(prices, since, until)
    sums = await store.ledger.read_sums(
        since,
        until,
        by=list_asked(by),
        filters=only,
        unit=unit,
        step=step,
        zone=zone,
        cuts=priced.cuts,
        kept=kept,
    )
    rows, total = make_rows(sums, by, priced, unit)
    found: list[JobLosses] = []
    if any(name in each.ms for each in sums for name in LOSSES):
        found = await store.ledger.read_losses(since, until, filters=only, unit=unit, kept=kept)
    losses = await _say_losses(
        store, priced, since, until, found, unit=unit, filters=only, total=total
    )
    shown = rows[:limit]
    if "job" in by:
        place = by.index("job")
        jobs = await store.jobs.get_jobs({row.key[place] for row in shown if row.key[place]})
        shown = name_rows(shown, place, {job_id: job.name for job_id, job in jobs.items()})
    return HoursReport(
        since=since,
        until=until,
        unit=unit,
        by=tuple(by),
        zone="UTC" if zone is None else zone.key,
        rows=tuple(shown),
        total=total,
        losses=losses,
        left_out=len(rows) - len(shown),
    )


async def _say_losses(
    store: PostgresStore,
    priced: PricedSpan,
    since: datetime,
    until: datetime,
    found: Sequence[JobLosses],
    *,
    unit: Unit,
    filters: Mapping[str, str],
    total: ReportRow,
) -> tuple[LossLine, ...]:
    """Return the largest losses. The dollars of a job's loss are at the price of its own hosts."""
    leased: dict[str, int] = {}
    rates: dict[str, float] = {}
    for job in found[:MAX_LINES]:
        only = {**filters, "job": job.job_id}
        ms, usd = 0, 0.0
        for each in await store.ledger.read_sums(
            since, until, by=("host",), filters=only, unit=unit, cuts=priced.cuts
        ):
            ms += each.total_ms
            usd += priced.find_usd(each.key[0], unit, each) or 0.0
        leased[job.job_id] = ms
        if ms and usd:
            rates[job.job_id] = usd * HOUR_MS / ms
    shown = found[:MAX_LINES]
    return list_losses(
        total.by_name, total.idle_hours, shown, leased, rates=rates, rate=find_rate(total)
    )


def find_idle_policy(settings: Settings, job: JobRecord) -> IdlePolicy:
    """Return what becomes of a job that holds idle GPUs, as its project sets it (HELD-2)."""
    project = job.project
    told, drained = (
        settings.value(name, project=project)
        for name in ("idle_gpus_seconds", "idle_gpus_drain_seconds")
    )
    assert isinstance(told, (int, float))
    assert isinstance(drained, (int, float))
    then = str(settings.value("idle_gpus", project=project))
    if then == "drain" and job.spec.interactive:
        then = "tell"
    return IdlePolicy(then=then, tell_seconds=float(told), drain_seconds=float(drained))
