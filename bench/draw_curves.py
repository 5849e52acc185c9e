"""`draw_curves.py FOLDER < curves.json`: an SVG for each curve. Run by the Python that has matplotlib.

Quantities of different units have a panel each; the load is drawn on a logarithmic axis.
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams.update(
    {"svg.hashsalt": "holdfast", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}
)
from matplotlib import pyplot  # noqa: E402  # the drawing surface must be chosen before

AXES = {"queued": "jobs queued", "hosts": "hosts, idle", "ranks": "ranks of a gang, 8 on a host"}


def draw(name: str, points: list[dict[str, float]], target: Path) -> None:
    units: dict[str, list[str]] = {}
    for label in points[0]:
        if label != "x":
            units.setdefault(label.rpartition(", ")[2], []).append(label)
    figure, panels = pyplot.subplots(1, len(units), figsize=(3.4 * len(units), 2.8), squeeze=False)
    for panel, (unit, labels) in zip(panels[0], units.items(), strict=True):
        for label in labels:
            values = [point[label] for point in points]
            panel.plot(
                [p["x"] for p in points],
                values,
                marker="o",
                label=label.rpartition(", ")[0] or label,
            )
        panel.set_xscale("log")
        panel.set_ylim(0, 1.15 * max(point[label] for point in points for label in labels) or 1)
        panel.set_xlabel(AXES[name])
        panel.set_title(unit, fontsize=9)
        panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for curve, found in json.load(sys.stdin).items():
        draw(curve, found, folder / f"curve-{curve}.svg")
