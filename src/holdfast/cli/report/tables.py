"""A report on the terminal: its lines, what the hours were spent on, and what was lost."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from holdfast.cli.output import columns, printable, table
from holdfast.cli.report.words import (
    NAMES,
    find_mostly,
    list_remarks,
    name_row,
    say_count,
    say_percent,
    say_span,
    say_usd,
    sum_free,
    sum_names,
)
from holdfast.core.report.idle import IdleJob
from holdfast.core.report.rows import HoursReport, ReportRow
from holdfast.core.words import split_span

_BAR_COLUMNS = 24
_WIDEST = 100


def draw_report(report: HoursReport) -> str:
    """Draw a report for a person. It is readable on 80 columns."""
    unit = "GPU-hours" if report.unit == "gpu" else "CPU-slot-hours"
    parts = [f"{unit}, {say_span(report)}"]
    if not report.rows:
        return f"{parts[0]}\n\nno hours are on record in this span; the ledger fills each minute"
    parts.append(_draw_lines(report))
    parts.append(_draw_names(report.total))
    if report.losses:
        parts.append(_draw_losses(report))
    remarks = list_remarks(report)
    if remarks:
        parts.append("\n".join(remarks))
    return "\n\n".join(parts)


def _draw_lines(report: HoursReport) -> str:
    heads = [field.upper() for field in report.by]
    figures = ["HOURS", "GOODPUT", "USD", "USEFUL", "LOST", "FREE", "MOST NOT KEPT"]
    lines = [[*name_row(row, report.by), *_cells(row)] for row in report.rows]
    if len(report.rows) > 1 or report.left_out:
        lines.append(["total", *[""] * (len(report.by) - 1), *_cells(report.total)])
    return table((*heads, *figures), lines, elastic=0, width=min(columns(), _WIDEST))


def _cells(row: ReportRow) -> list[str]:
    return [
        say_count(row.hours),
        say_percent(row.goodput),
        say_usd(row.usd, row),
        say_usd(row.useful_usd, row),
        say_usd(row.lost_usd, row),
        say_count(sum_free(row)),
        find_mostly(row),
    ]


def _draw_names(row: ReportRow) -> str:
    names = sum_names(row)
    whole = sum(names.values()) or 1.0
    lines = []
    for name, hours in names.items():
        bar = "#" * max(1, round(_BAR_COLUMNS * hours / whole))
        lines.append(
            f"{NAMES[name]:<26}{say_count(hours):>9} h {say_percent(hours / whole):>6}  {bar}"
        )
    return "\n".join(lines)


def _draw_losses(report: HoursReport) -> str:
    wraps = textwrap.TextWrapper(
        min(columns(), _WIDEST), initial_indent="  ", subsequent_indent="    "
    )
    lines = ["What was lost, and what would mend it:"]
    for loss in report.losses:
        usd = f"${loss.usd:,.2f}  " if loss.usd else ""
        lines += wraps.wrap(printable(usd + loss.sentence))
    return "\n".join(lines)


def draw_idle(jobs: Sequence[IdleJob]) -> str:
    """Draw the table of `report --idle`."""
    if not jobs:
        return "no job holds idle GPUs"
    cells = [
        [
            job.name,
            job.job_id,
            job.owner or "-",
            job.project,
            str(job.gpus),
            split_span(job.idle_seconds),
            "?" if job.usd is None else f"{job.usd:,.2f}",
            _say_next(job),
        ]
        for job in jobs
    ]
    heads = ("JOB", "ID", "OWNER", "PROJECT", "GPUS", "IDLE", "USD", "NEXT")
    return table(heads, cells, elastic=0)


def _say_next(job: IdleJob) -> str:
    if job.drain_at is not None:
        return f"stops {job.drain_at:%H:%M}"
    return "told" if job.told_at is not None else job.policy
