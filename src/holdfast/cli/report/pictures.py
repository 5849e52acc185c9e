"""The pictures of a report's page, as inline SVG: bars whose colours are the page's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import msgspec

from holdfast.cli.report.words import NAMES, name_row, say_count, say_percent, sum_free, sum_names
from holdfast.core.report.rows import HoursReport, ReportRow

WIDTH = 760
PARTS: Mapping[str, str] = {
    "kept": "kept",
    "lost": "lost",
    "unmeasured": "not measured",
    "free": "free",
}
"""The parts of a bar, by the class that gives each its colour, and their words."""
_BAR = 20
_GAP = 10
_LABEL = 200
_FIGURE = 150
_PLOT_HEIGHT = 180
_MOST_BARS = 24


class _Bar(msgspec.Struct, frozen=True):
    """One bar: its label, its parts in hours, and the figure beside it."""

    label: str
    parts: tuple[tuple[str, float], ...]
    figure: str

    @property
    def whole(self) -> float:
        """Return the length of the bar, in hours."""
        return sum(hours for _, hours in self.parts)


def draw_names(row: ReportRow) -> str:
    """Draw what the hours were spent on, a bar for each name."""
    names = sum_names(row)
    whole = sum(names.values()) or 1.0
    bars = [
        _Bar(
            NAMES[name],
            ((_find_part(name, row), hours),),
            f"{say_count(hours)} h · {say_percent(hours / whole)}",
        )
        for name, hours in names.items()
    ]
    return _draw_bars(bars, "What the hours were spent on")


def draw_rows(report: HoursReport) -> str:
    """Draw the lines of a report: columns in the order of time, or bars, the longest first."""
    if report.by == ("time",):
        return _draw_columns(report)
    bars = [
        _Bar(" · ".join(name_row(row, report.by)), _split(row), f"{_say(row)}")
        for row in report.rows[:_MOST_BARS]
    ]
    return _draw_bars(bars, f"Hours by {', '.join(report.by)}")


def _say(row: ReportRow) -> str:
    hours = row.hours + sum_free(row)
    kept = "" if row.goodput is None else f" · {say_percent(row.goodput)} kept"
    return f"{say_count(hours)} h{kept}"


def _split(row: ReportRow) -> tuple[tuple[str, float], ...]:
    """Return the hours of a line by the parts of a bar."""
    kept = row.by_name.get("kept", 0.0)
    unmeasured = sum(row.by_name.get(f"unmeasured_{how}", 0.0) for how in ("busy", "idle"))
    lost = max(0.0, row.hours - kept - unmeasured)
    return (("kept", kept), ("lost", lost), ("unmeasured", unmeasured), ("free", sum_free(row)))


def _find_part(name: str, row: ReportRow) -> str:
    """Return the part that a name belongs to: free where no job held its hours."""
    if name not in row.by_name:
        return "free"
    if name == "kept":
        return "kept"
    return "unmeasured" if name.startswith("unmeasured") else "lost"


def _draw_bars(bars: Sequence[_Bar], title: str) -> str:
    height = len(bars) * (_BAR + _GAP) + _GAP
    longest = max((bar.whole for bar in bars), default=0.0) or 1.0
    room = WIDTH - _LABEL - _FIGURE
    out = [_open(height, title)]
    for number, bar in enumerate(bars):
        top = _GAP + number * (_BAR + _GAP)
        middle = top + _BAR / 2
        label = bar.label if len(bar.label) <= 28 else bar.label[:27] + "…"
        out.append(
            f'<text class="label" x="{_LABEL - 10}" y="{middle:.1f}">{escape(label)}'
            f"<title>{escape(bar.label)}</title></text>"
        )
        left = float(_LABEL)
        for part, hours in bar.parts:
            width = room * hours / longest
            if width <= 0:
                continue
            said = escape(f"{bar.label}: {PARTS[part]} {say_count(hours)} h")
            out.append(
                f'<rect class="{part}" x="{left:.2f}" y="{top}" width="{max(width, 0.5):.2f}" '
                f'height="{_BAR}"><title>{said}</title></rect>'
            )
            left += width
        out.append(
            f'<text class="figure" x="{left + 8:.1f}" y="{middle:.1f}">{escape(bar.figure)}</text>'
        )
    out.append("</svg>")
    return "".join(out)


def _draw_columns(report: HoursReport) -> str:
    rows = report.rows
    tallest = max((row.hours + sum_free(row) for row in rows), default=0.0) or 1.0
    step = (WIDTH - 60) / max(1, len(rows))
    out = [_open(_PLOT_HEIGHT + 50, "Hours over time")]
    out.append(f'<line class="axis" x1="50" y1="{_PLOT_HEIGHT}" x2="{WIDTH}" y2="{_PLOT_HEIGHT}"/>')
    out.append(f'<text class="label" x="44" y="14">{escape(say_count(tallest))} h</text>')
    every = max(1, round(len(rows) * 90 / (WIDTH - 60)))
    for number, row in enumerate(rows):
        left, bottom = 54 + number * step, float(_PLOT_HEIGHT)
        (moment,) = name_row(row, report.by)
        for part, hours in _split(row):
            height = (_PLOT_HEIGHT - 8) * hours / tallest
            if height <= 0:
                continue
            bottom -= height
            said = escape(f"{moment}: {PARTS[part]} {say_count(hours)} h")
            out.append(
                f'<rect class="{part}" x="{left:.2f}" y="{bottom:.2f}" '
                f'width="{max(1.0, step - 2):.2f}" height="{max(height, 0.5):.2f}">'
                f"<title>{said}</title></rect>"
            )
        if number % every == 0:
            out.append(
                f'<text class="tick" x="{left:.1f}" y="{_PLOT_HEIGHT + 18}">{escape(moment)}</text>'
            )
    out.append("</svg>")
    return "".join(out)


def _open(height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">'
    )


def draw_legend() -> str:
    """Draw what the colours mean."""
    keys = (f'<span class="key {part}"></span>{words}' for part, words in PARTS.items())
    return f'<p class="legend">{" ".join(keys)}</p>'
