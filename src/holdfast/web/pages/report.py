"""Report: what hours were spent on, what they cost, and what would mend the losses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import msgspec

from holdfast.core.ledger.values import LedgerName
from holdfast.core.report.rows import HoursReport, ReportRow
from holdfast.errors import NotFound
from holdfast.web.page import Page, PageRequest, together

SPANS = {"24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
FIELDS = ("project", "owner", "job", "queue", "host", "pool")
WIDTH = 1000
_HUES: Mapping[LedgerName, str] = {
    LedgerName.KEPT: "running",
    LedgerName.LOST: "failed",
    LedgerName.STALLED: "failed",
    LedgerName.UNFIT: "failed",
    LedgerName.DRAINING: "draining",
    LedgerName.CHECKPOINTING: "draining",
    LedgerName.SETTING_UP: "starting",
    LedgerName.LOADING: "starting",
    LedgerName.STARTING: "starting",
    LedgerName.UNMEASURED_BUSY: "done",
}


class LedgerPart(msgspec.Struct, frozen=True, kw_only=True):
    """One name in a bar: its share of the width, its hours and its colour."""

    name: str
    hours: float
    percent: float
    x: float
    width: float
    hue: str


def draw_parts(row: ReportRow) -> list[LedgerPart]:
    """Return the names of a line as parts of one bar, in the ledger's order with kept time first."""
    total = sum(row.by_name.values())
    if total <= 0:
        return []
    parts, x = [], 0.0
    names = sorted(LedgerName, key=lambda name: name is not LedgerName.KEPT)
    for name in names:
        hours = row.by_name.get(name.value, 0.0)
        if hours <= 0:
            continue
        width = hours / total * WIDTH
        parts.append(
            LedgerPart(
                name=name.value.replace("_", " "),
                hours=hours,
                percent=hours / total * 100,
                x=round(x, 2),
                width=round(width, 2),
                hue=_HUES.get(name, "waiting"),
            )
        )
        x += width
    return parts


async def show(ask: PageRequest) -> Page:
    """Make the page. Raises NotFound."""
    span, field = ask.query.get("last", "7d"), ask.query.get("by", "project")
    unit = ask.query.get("unit", "gpu")
    if span not in SPANS or field not in FIELDS or unit not in ("gpu", "cpu"):
        raise NotFound(f"there is no report of the last {span[:16]} by {field[:32]}")
    report, idle = await together(
        ask.reader.report(since=ask.now - SPANS[span], by=(field,), unit=unit),
        ask.reader.idle_jobs(),
    )
    values = {
        "report": report,
        "parts": draw_parts(report.total),
        "lines": [(row, draw_parts(row)) for row in report.rows],
        "idle": idle,
        "span": span,
        "spans": list(SPANS),
        "field": field,
        "fields": FIELDS,
        "unit": unit,
    }
    return Page(template="report.html", title="Report", values=values)


async def read_day(ask: PageRequest) -> tuple[HoursReport, list[LedgerPart]]:
    """Return the last day of GPUs, or of CPU slots where no GPU was held, and its bar."""
    since = ask.now - SPANS["24h"]
    report = await ask.reader.report(since=since, limit=1)
    if not report.total.hours:
        report = await ask.reader.report(since=since, unit="cpu", limit=1)
    return report, draw_parts(report.total)
