"""The words and figures of reports, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from holdfast.core.arrays.schedules import read_zone
from holdfast.core.ledger.values import LedgerName
from holdfast.core.report.rows import HoursReport, ReportRow

NAMES: Mapping[str, str] = {
    "kept": "kept: steps that count",
    "lost": "lost: steps done again",
    "checkpointing": "saves that block",
    "stalled": "stalled, until stopped",
    "waiting": "waiting for other ranks",
    "setting_up": "image, code, setup",
    "loading": "start to first beat",
    "idle": "idle while the job beats",
    "draining": "being stopped",
    "unfit": "host set aside",
    "unmeasured_busy": "no beats, GPUs busy",
    "unmeasured_idle": "no beats, GPUs idle",
    "starting": "free: host starts",
    "unused": "free: without work",
}
"""The ledger's names for people, in the order in which they are drawn."""


def name_row(row: ReportRow, by: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts of a line's key: a job with its name, a moment as people write it. Hours of no
    job have no owner either, and hosts of one's own no pool."""
    words = []
    for field, text in zip(by, row.key, strict=True):
        if field == "job" and row.name and text:
            words.append(f"{row.name} ({text})")
        elif field == "time":
            words.append(say_moment(text))
        else:
            words.append(text or f"(no {field.removeprefix('label:')})")
    return tuple(words)


def say_moment(text: str) -> str:
    """Write an ISO time without what is zero: 2026-11-20, or 2026-11-20 14:05."""
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text
    whole = (at.hour, at.minute) == (0, 0)
    return f"{at:%Y-%m-%d}" if whole else f"{at:%Y-%m-%d %H:%M}"


def say_span(report: HoursReport) -> str:
    """Write the span that a report counted, in its time zone."""
    zone = read_zone(report.zone)
    since, until = (at.astimezone(zone) for at in (report.since, report.until))
    return f"{since:%d %b %Y %H:%M} - {until:%d %b %Y %H:%M} {report.zone}"


def say_count(hours: float) -> str:
    """Write hours as a figure of a table."""
    if not hours:
        return "-"
    if hours < 0.005:
        return "<0.01"
    return f"{hours:.2f}" if hours < 10 else f"{hours:,.0f}" if hours >= 1000 else f"{hours:.1f}"


def say_usd(usd: float | None, row: ReportRow | None = None) -> str:
    """Write dollars. Of a line of which no hour has a price they are not known (PRICE-3)."""
    if usd is None or (row is not None and not usd and row.unpriced_hours):
        return "?"
    return "-" if not usd else f"{usd:,.0f}" if usd >= 1000 else f"{usd:,.2f}"


def say_percent(part: float | None) -> str:
    """Write a part as a percentage."""
    if part is None:
        return "-"
    return "<1 %" if 0 < part < 0.005 else f"{100 * part:.0f} %"


def sum_free(row: ReportRow) -> float:
    """Return the hours of a line that no job held."""
    return sum(row.idle_hours.values())


def sum_names(row: ReportRow) -> dict[str, float]:
    """Return the hours of a line by name, held and free together, in the order of `NAMES`."""
    return {
        name: hours
        for name in NAMES
        if (hours := row.by_name.get(name, 0.0) + row.idle_hours.get(name, 0.0)) > 0
    }


def find_mostly(row: ReportRow) -> str:
    """Return the name that took most of the hours that were not kept."""
    others = {name: hours for name, hours in row.by_name.items() if name != LedgerName.KEPT}
    if not others:
        return "-"
    name = max(others, key=lambda each: others[each])
    return f"{name} {say_count(others[name])}"


def list_remarks(report: HoursReport) -> list[str]:
    """Return what a reader has to know about the figures."""
    total, remarks = report.total, list[str]()
    if report.left_out:
        remarks.append(f"{report.left_out} more lines are left out; --limit N shows more.")
    if total.unpriced_hours >= 0.05 and report.unit == "gpu":
        hours = say_count(total.unpriced_hours)
        remarks.append(
            f"{hours} h are without a price: holdfast config set gpu_hour_usd N --from TIME"
        )
    if total.provisional:
        remarks.append("Some jobs still run, so some hours may get another name.")
    unmeasured = sum(hours for name, hours in total.by_name.items() if name.startswith("unmeas"))
    if unmeasured >= 0.05:
        remarks.append(
            f"{say_count(unmeasured)} h are of jobs that send no beats; no goodput is told of them."
        )
    return remarks
