"""A report as CSV: a line for each line, a column for each name."""

from __future__ import annotations

import csv
import io

from holdfast.core.ledger.values import LedgerName
from holdfast.core.report.rows import HoursReport, ReportRow

_FORMULA = ("=", "+", "-", "@", "\t")


def write_csv(report: HoursReport) -> str:
    """Return the lines of a report, with a head. Hours are decimal, dollars too; goodput is empty
    without measured work."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    named = "job" in report.by
    writer.writerow(
        [
            *report.by,
            *(["job_name"] if named else []),
            "hours",
            "goodput",
            "usd",
            "useful_usd",
            "lost_usd",
            "unmeasured_usd",
            "free_hours",
            "free_usd",
            "unpriced_hours",
            *(f"{name}_hours" for name in LedgerName),
            "provisional",
        ]
    )
    for row in report.rows:
        texts = [*row.key, *([row.name] if named else [])]
        writer.writerow([*(_quiet(text) for text in texts), *_figures(row)])
    return out.getvalue()


def _figures(row: ReportRow) -> list[str]:
    free = sum(row.idle_hours.values())
    money = (row.usd, row.useful_usd, row.lost_usd, row.unmeasured_usd)
    hours = [
        row.by_name.get(str(name), 0.0) + row.idle_hours.get(str(name), 0.0) for name in LedgerName
    ]
    return [
        f"{row.hours:.4f}",
        "" if row.goodput is None else f"{row.goodput:.4f}",
        *(f"{usd:.4f}" for usd in money),
        f"{free:.4f}",
        f"{row.idle_usd:.4f}",
        f"{row.unpriced_hours:.4f}",
        *(f"{each:.4f}" for each in hours),
        "yes" if row.provisional else "no",
    ]


def _quiet(text: str) -> str:
    """Return a text as one line that no spreadsheet takes for a formula: a name may begin like
    one."""
    line = text.replace("\r", " ").replace("\n", " ")
    return f"'{line}" if line.startswith(_FORMULA) else line
