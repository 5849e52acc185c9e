"""Values over time as plots: stacked columns and a line, drawn as paths on the server. Pure.

A plot is a picture without words, which stretches with its page; the words of its axes stand beside it
as text. The page's script writes those of the time, because they are of the viewer's zone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

WIDTH, HEIGHT = 1000.0, 100.0
_LINES = 4
_GAP = 0.12
"""The part of a column's width that is left free."""


class PlotLayer(msgspec.Struct, frozen=True, kw_only=True):
    """One name of stacked columns: its colour's name and its outline."""

    name: str
    path: str


class PlotColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of time: where its column stands, and its values by name, in the plot's order."""

    at: datetime
    x: float
    width: float
    values: Mapping[str, float]
    goodput: float | None = None

    @property
    def total(self) -> float:
        """Return the height of the column."""
        return sum(self.values.values())


class StackedPlot(msgspec.Struct, frozen=True, kw_only=True):
    """Columns that are stacked by name, on one scale. top: the value at the upper edge. ticks: the values
    of the axis, the highest first. line: the outline of the goodput; empty where none was
    measured."""

    begin: datetime
    end: datetime
    layers: Sequence[PlotLayer]
    columns: Sequence[PlotColumn]
    top: float
    ticks: Sequence[float]
    line: str = ""


def find_top(most: float, lines: int = _LINES) -> float:
    """Return the least round value at or over `most` that `lines` round steps reach."""
    if most <= 0:
        return float(lines)
    step = most / lines
    power = 10.0 ** math.floor(math.log10(step))
    for factor in (1, 2, 2.5, 5, 10):
        if factor * power >= step * (1 - 1e-9):
            return factor * power * lines
    raise AssertionError("ten powers are over each step")


def stack(
    begin: datetime,
    step: timedelta,
    count: int,
    found: Mapping[datetime, tuple[Mapping[str, float], float | None]],
    names: Sequence[str],
) -> StackedPlot:
    """Return the plot of `count` stretches of `step` from `begin` on. found: for the start of a
    stretch its values by name, and its goodput; a stretch that is missing has none. names: the
    order of the layers, from the ground up; names without a value get no layer."""
    width = WIDTH / count
    columns = []
    for n in range(count):
        at = begin + n * step
        values, goodput = found.get(at, ({}, None))
        columns.append(
            PlotColumn(
                at=at,
                x=round(n * width, 2),
                width=round(width, 2),
                values={name: values[name] for name in names if values.get(name, 0.0) > 0},
                goodput=goodput,
            )
        )
    top = find_top(max(column.total for column in columns))
    return StackedPlot(
        begin=begin,
        end=begin + count * step,
        layers=_draw_layers(columns, names, top),
        columns=columns,
        top=top,
        ticks=[top * n / _LINES for n in range(_LINES, -1, -1)],
        line=_draw_line(columns),
    )


def _draw_layers(
    columns: Sequence[PlotColumn], names: Sequence[str], top: float
) -> list[PlotLayer]:
    heights = [0.0] * len(columns)
    layers = []
    for name in names:
        pieces = []
        for n, column in enumerate(columns):
            value = column.values.get(name, 0.0)
            if value <= 0:
                continue
            tall = value / top * HEIGHT
            heights[n] += tall
            gap = column.width * _GAP / 2
            pieces.append(
                f"M{column.x + gap:.1f} {HEIGHT - heights[n]:.2f}h{column.width - 2 * gap:.1f}v{tall:.2f}"
                f"h-{column.width - 2 * gap:.1f}z"
            )
        if pieces:
            layers.append(PlotLayer(name=name, path="".join(pieces)))
    return layers


def _draw_line(columns: Sequence[PlotColumn]) -> str:
    """Return the outline of the goodput, which breaks off where none was measured."""
    pieces, pen = [], "M"
    for column in columns:
        if column.goodput is None:
            pen = "M"
            continue
        y = HEIGHT * (1 - column.goodput)
        pieces.append(f"{pen}{column.x + column.width / 2:.1f} {y:.2f}")
        if pen == "M":
            pieces.append("h.01")  # one point alone is seen, too
        pen = "L"
    return "".join(pieces)
