"""Reports for the tests of what is drawn of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast.core.ledger.values import JobLosses, LedgerName, LedgerSum, LostBy
from holdfast.core.report.losses import list_losses
from holdfast.core.report.money import HOUR_MS, HostPrice, PricedSpan, Prices
from holdfast.core.report.rows import HoursReport, find_rate, make_rows

SINCE = datetime(2026, 11, 19, tzinfo=UTC)
UNTIL = datetime(2026, 11, 26, 12, tzinfo=UTC)
PRICES = PricedSpan(Prices([HostPrice(host="h1", gpu_hour_usd=2.5)]), SINCE, UNTIL)


def ledger_sum(*key: str, **hours: float) -> LedgerSum:
    """Sums of hours for a key, which ends with project and host."""
    ms = {LedgerName(name): round(value * HOUR_MS) for name, value in hours.items()}
    return LedgerSum(key=key, ms=ms, provisional=True)


def make_report(
    *sums: LedgerSum, by: tuple[str, ...] = ("owner",), losses: tuple[JobLosses, ...] = ()
) -> HoursReport:
    """A report of these sums, which are by `by`, project and host."""
    rows, total = make_rows(sums, by, PRICES, "gpu")
    lines = list_losses(
        total.by_name, total.idle_hours, losses, {}, rates={}, rate=find_rate(total)
    )
    return HoursReport(
        since=SINCE, until=UNTIL, unit="gpu", by=by, rows=tuple(rows), total=total, losses=lines
    )


def lost_of(name: str, **fields: Any) -> JobLosses:
    """What a job of this name lost: 3.1 hours in 4 stalls."""
    plain: dict[str, Any] = {
        "job_id": "j1",
        "job_name": name,
        "project": "vision",
        "owner": "ada",
        "queue": "gpu",
        "devices": 1,
        "lost": [LostBy(cause="stalled", ends=4, lost_ms=round(3.1 * HOUR_MS))],
    }
    return JobLosses(**plain | fields)


def usual_report() -> HoursReport:
    """Three owners, and hosts without work."""
    return make_report(
        ledger_sum("ada", "vision", "h1", kept=98, lost=3.1, stalled=9, checkpointing=2, loading=4),
        ledger_sum("bob", "speech", "h1", unmeasured_busy=30, unmeasured_idle=10),
        ledger_sum("cyd", "speech", "h2", kept=12.5, waiting=0.5),
        ledger_sum("", "", "h1", unused=60.1, starting=3.9),
        losses=(lost_of("train"),),
    )
