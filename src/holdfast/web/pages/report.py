"""Report: what hours were spent on, what they cost, and what would mend the losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.core.ledger.values import UNLEASED, LedgerName
from holdfast.core.report.rows import HoursReport, ReportRow
from holdfast.errors import NotFound
from holdfast.web.page import Page, PageRequest, together
from holdfast.web.plots import StackedPlot, stack

_STEPS: Mapping[str, tuple[timedelta, int]] = {
    "24h": (timedelta(hours=1), 24),
    "7d": (timedelta(hours=1), 168),
    "30d": (timedelta(days=1), 30),
}
"""How long a column of the history is, and how many there are."""
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
_ORDER = (LedgerName.KEPT, *(n for n in LedgerName if n is not LedgerName.KEPT))
MAX_LINES = 1000
LEAST_COLUMNS = 12
"""A history begins with its first hours, but has so many columns."""


class LedgerPart(msgspec.Struct, frozen=True, kw_only=True):
    """One name in a bar: its share of the width, its hours and its colour."""

    name: str
    hours: float
    percent: float
    x: float
    width: float
    hue: str


def find_name_hue(name: LedgerName) -> str:
    """Return the name of the colour of what a second was spent on."""
    return "free" if name in UNLEASED else _HUES.get(name, "waiting")


def draw_parts(row: ReportRow) -> list[LedgerPart]:
    """Return the names of a line as parts of one bar, in the ledger's order with kept time first."""
    total = sum(row.by_name.values())
    if total <= 0:
        return []
    parts, x = [], 0.0
    for name in _ORDER:
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
                hue=find_name_hue(name),
            )
        )
        x += width
    return parts


_MEASURES = {
    ("gpu", "hour"): "GPUs",
    ("gpu", "day"): "GPU-hours",
    ("cpu", "hour"): "CPU slots",
    ("cpu", "day"): "Slot-hours",
}
"""(unit, step) → what the history of a report counts."""


async def show(ask: PageRequest) -> Page:
    """Make the page. Raises NotFound."""
    field, unit = ask.query.get("by", "project"), ask.query.get("unit", "gpu")
    span = ask.query.get("last", "")
    if span not in ("", *SPANS) or field not in FIELDS or unit not in ("gpu", "cpu"):
        raise NotFound(f"there is no report of the last {span[:16]} by {field[:32]}")
    if span:
        history = await read_history(ask, span, unit)
    else:
        span, history = await find_span(ask, unit)
    report, idle = await together(
        ask.reader.report(since=ask.now - SPANS[span], by=(field,), unit=unit),
        ask.reader.idle_jobs(),
    )
    step = "hour" if _STEPS[span][0] < timedelta(days=1) else "day"
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
        "plot": draw_history(ask, span, history),
        "step": step,
        "measure": _MEASURES[unit, step],
        "hues": {name.value.replace("_", " "): find_name_hue(name) for name in LedgerName},
    }
    return Page(template="report.html", title="Report", values=values)


async def find_span(ask: PageRequest, unit: str) -> tuple[str, HoursReport]:
    """Return the span in which the hours of jobs are: a week, but a day where a week has no more than
    that, and a month where a week has none; and a history that covers the span."""
    week = await read_history(ask, "7d", unit)
    if not week.total.hours:
        month = await read_history(ask, "30d", unit)
        return ("30d", month) if month.total.hours else ("24h", week)
    begin = _begin_history(ask, "24h")
    earlier = any(row.hours for row in week.rows if datetime.fromisoformat(row.key[0]) < begin)
    return "7d" if earlier else "24h", week


def _begin_history(ask: PageRequest, span: str) -> datetime:
    """Return the start of the first column of a span's history."""
    step, count = _STEPS[span]
    length = step.total_seconds()
    last = datetime.fromtimestamp(ask.now.timestamp() // length * length, UTC)  # as the ledger cuts
    return last - (count - 1) * step


async def read_history(ask: PageRequest, span: str, unit: str) -> HoursReport:
    """Return the hours of a span by its columns."""
    step = "day" if _STEPS[span][0] >= timedelta(days=1) else "hour"
    begin = _begin_history(ask, span)
    return await ask.reader.report(since=begin, by=("time",), step=step, unit=unit, limit=MAX_LINES)


def draw_history(ask: PageRequest, span: str, history: HoursReport) -> StackedPlot | None:
    """Return the hours of a span as columns over time; None where there were none."""
    (step, count), begin, found = _STEPS[span], _begin_history(ask, span), {}
    for row in history.rows:
        at = datetime.fromisoformat(row.key[0])
        if at < begin:
            continue
        hours = Counter(row.by_name)
        hours.update(row.idle_hours)
        values = {name.replace("_", " "): each for name, each in hours.items()}
        found[at] = values, row.goodput
    if not found:
        return None
    last = begin + (count - 1) * step
    count = min(count, max(LEAST_COLUMNS, 1 + round((last - min(found)) / step)))
    begin = last - (count - 1) * step
    return stack(begin, step, count, found, [name.value.replace("_", " ") for name in _ORDER])


async def read_day(ask: PageRequest) -> tuple[HoursReport, list[LedgerPart]]:
    """Return the last day of GPUs, or of CPU slots where no GPU was held, and its bar."""
    since = ask.now - SPANS["24h"]
    report = await ask.reader.report(since=since, limit=1)
    if not report.total.hours:
        report = await ask.reader.report(since=since, unit="cpu", limit=1)
    return report, draw_parts(report.total)
