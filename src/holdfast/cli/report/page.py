"""A report as one page of HTML that needs nothing from outside: no script, no font, no address.

PAGE-1  Every text that comes from a user, as a job's name, is escaped, and the page's own policy lets
        a browser load and run nothing.
"""

from __future__ import annotations

from datetime import datetime
from html import escape

from holdfast.cli.report.pictures import draw_legend, draw_names, draw_rows
from holdfast.cli.report.words import (
    find_mostly,
    list_remarks,
    name_row,
    say_count,
    say_percent,
    say_span,
    say_usd,
    sum_free,
)
from holdfast.core.report.rows import HoursReport, ReportRow

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1c2024; --soft: #60646c; --rule: #dfe1e6;
  --card: #f5f6f8; --kept: #1c7c4a; --lost: #c02f2f; --unmeasured: #4f7a62; --free: #dcdcd7; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15171a; --ink: #e8eaed; --soft: #a0a5ad; --rule: #32363c; --card: #1e2125;
    --kept: #4cc38a; --lost: #ff7b72; --unmeasured: #6a9c82; --free: #2c3033; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 60rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.6rem; } h2 { margin: 2.2rem 0 .6rem; font-size: 1.1rem; }
.soft { margin: .2rem 0 0; color: var(--soft); }
.cards { display: flex; flex-wrap: wrap; gap: .75rem; margin-top: 1.4rem; }
.card { flex: 1 1 8rem; padding: .7rem .9rem; border-radius: 8px; background: var(--card); }
.card b { display: block; font-size: 1.45rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: .85rem; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); dominant-baseline: central; } svg .label { text-anchor: end; }
svg .figure, svg .tick { fill: var(--soft); } svg .axis { stroke: var(--rule); }
.kept { fill: var(--kept); background: var(--kept); } .lost { fill: var(--lost); background: var(--lost); }
.unmeasured { fill: var(--unmeasured); background: var(--unmeasured); }
.free { fill: var(--free); background: var(--free); }
.legend { color: var(--soft); font-size: .85rem; }
.key { display: inline-block; width: .75rem; height: .75rem; margin: 0 .3rem 0 .9rem; border-radius: 2px; }
.wide { overflow-x: auto; } table { width: 100%; border-collapse: collapse; font-size: .9rem; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--rule); text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } .text { text-align: left; white-space: normal;
  overflow-wrap: anywhere; }
tr.total td { border-top: 2px solid var(--rule); border-bottom: 0; font-weight: 600; }
li { margin: .35rem 0; overflow-wrap: anywhere; } li b { font-variant-numeric: tabular-nums; }
"""
_HEADS = ("hours", "goodput", "$", "useful $", "lost $", "free h", "most not kept")


def draw_page(report: HoursReport, made_at: datetime) -> str:
    """Return the page. made_at: the time that it names as its own, in the report's zone."""
    unit = "GPU-hours" if report.unit == "gpu" else "CPU-slot-hours"
    body = [
        f"<h1>Where the {unit} went</h1>",
        f'<p class="soft">{escape(say_span(report))} · by {escape(", ".join(report.by))} · '
        f"made {made_at:%d %b %Y %H:%M} {escape(report.zone)}</p>",
        _draw_cards(report.total, unit),
    ]
    if not report.rows:
        body.append("<p>No hours are on record in this span.</p>")
    else:
        body += [
            f"<h2>Hours by {escape(', '.join(report.by))}</h2>",
            draw_rows(report),
            draw_legend(),
            "<h2>What the hours were spent on</h2>",
            draw_names(report.total),
            *_draw_losses(report),
            "<h2>All lines</h2>",
            _draw_table(report),
        ]
    body += [f'<p class="soft">{escape(remark)}</p>' for remark in list_remarks(report)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Where the {unit} went</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{chr(10).join(body)}\n</body></html>\n"
    )


def _draw_cards(total: ReportRow, unit: str) -> str:
    cards = (
        (say_count(total.hours), f"{unit} that jobs held"),
        (say_percent(total.goodput), "goodput of measured work"),
        (f"${say_usd(total.usd, total)}", "cost of these hours"),
        (f"${say_usd(total.useful_usd, total)}", "of it useful"),
        (f"${say_usd(total.lost_usd, total)}", "of it lost"),
        (say_count(sum_free(total)), "hours that no job held"),
    )
    drawn = (
        f'<div class="card"><b>{escape(figure)}</b><span>{escape(words)}</span></div>'
        for figure, words in cards
    )
    return f'<div class="cards">{"".join(drawn)}</div>'


def _draw_losses(report: HoursReport) -> list[str]:
    if not report.losses:
        return []
    lines = []
    for loss in report.losses:
        usd = f"<b>${loss.usd:,.2f}</b> " if loss.usd else ""
        lines.append(f"<li>{usd}{escape(loss.sentence)}</li>")
    return ["<h2>What was lost, and what would mend it</h2>", f"<ul>{''.join(lines)}</ul>"]


def _draw_table(report: HoursReport) -> str:
    texts = "".join(f'<th class="text">{escape(field)}</th>' for field in report.by)
    heads = "".join(f"<th>{escape(head)}</th>" for head in _HEADS)
    lines = [f"<tr>{texts}{heads}</tr>"]
    lines += [_draw_line(row, name_row(row, report.by)) for row in report.rows]
    first = ("all", *[""] * (len(report.by) - 1))
    lines.append(_draw_line(report.total, first, "total"))
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _draw_line(row: ReportRow, texts: tuple[str, ...], kind: str = "") -> str:
    cells = [f'<td class="text">{escape(text)}</td>' for text in texts]
    figures = (
        say_count(row.hours),
        say_percent(row.goodput),
        say_usd(row.usd, row),
        say_usd(row.useful_usd, row),
        say_usd(row.lost_usd, row),
        say_count(sum_free(row)),
        find_mostly(row),
    )
    cells += [f"<td>{escape(figure)}</td>" for figure in figures]
    return f'<tr class="{kind}">{"".join(cells)}</tr>' if kind else f"<tr>{''.join(cells)}</tr>"
