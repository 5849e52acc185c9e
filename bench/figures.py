"""What a benchmark says: lines of value, limit, ratio and budget, as aligned text and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """Several readings of one thing: the median is quoted, the extremes say how far to trust it."""

    median: float
    low: float
    high: float
    count: int


def spread(readings: Sequence[float]) -> Spread:
    """Sum up `readings`. Raises ValueError when there are none: a figure that was not measured must
    not be printed."""
    if not readings:
        raise ValueError("no readings")
    return Spread(statistics.median(readings), min(readings), max(readings), len(readings))


def percentile(readings: Sequence[float], percent: float) -> float:
    """The smallest reading that at least `percent` of all readings do not exceed."""
    ordered = sorted(readings)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, min(len(ordered) - 1, int(rank) - 1))]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One measured thing.

    limit: the same work without Holdfast, in the same unit and the same run. ratio: value over
    limit.
    budget: what was promised, in words; met: whether it was kept, None where nothing was promised.
    """

    what: str
    unit: str
    value: Spread
    limit_name: str = ""
    limit: Spread | None = None
    budget: str = ""
    met: bool | None = None

    @property
    def ratio(self) -> float | None:
        """Median over median."""
        if self.limit is None or self.limit.median == 0:
            return None
        return self.value.median / self.limit.median


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one benchmark. `notes` say what the numbers do not; `error` is why there are
    none."""

    name: str
    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str = ""


def number_of(value: float) -> str:
    """Return a figure with three digits that count."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def range_of(found: Spread) -> str:
    """Return the median, and the extremes of several readings."""
    if found.count == 1:
        return number_of(found.median)
    return f"{number_of(found.median)} ({number_of(found.low)}-{number_of(found.high)})"


_WORDS = {True: "met", False: "MISSED", None: "-"}
HEADINGS = (
    "benchmark",
    "what",
    "unit",
    "value (min-max)",
    "limit (min-max)",
    "ratio",
    "budget",
    "",
)


def render_table(all_figures: Sequence[Figures]) -> str:
    """Aligned text, one row per line, notes and errors below."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    below: list[str] = []
    for figures in all_figures:
        for line in figures.lines:
            ratio = line.ratio
            rows.append(
                (
                    figures.name,
                    line.what,
                    line.unit,
                    range_of(line.value),
                    f"{range_of(line.limit)} {line.limit_name}".strip()
                    if line.limit is not None
                    else line.limit_name or "-",
                    f"{ratio:.2f}" if ratio is not None else "-",
                    line.budget or "-",
                    _WORDS[line.met],
                )
            )
        below += [f"{figures.name}: {note}" for note in figures.notes]
        if figures.error:
            below.append(f"{figures.name}: NOT MEASURED: {figures.error}")
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*text, *([""] if below else []), *below])


def to_plain(figures: Figures) -> dict[str, object]:
    """A value for JSON, the ratios written out."""
    plain: dict[str, object] = msgspec.to_builtins(figures)
    plain["lines"] = [{**msgspec.to_builtins(line), "ratio": line.ratio} for line in figures.lines]
    return plain
