"""Healthy hosts on a crowded machine: none may be taken for dead, on either side of the bus."""

from __future__ import annotations

from bench.figures import Figures, Line, spread
from bench.processes import run_module
from bench.scale import Scale

name = "supervisor-crowd"
budget = "no healthy host lost: 16 managers x 8 ranks beside a load of 50"
_MANAGERS, _PER_HOST = 16, 8
_SECONDS = 1800
_REST_SECONDS = 4.0  # longer than any silence that is a loss


def run(scale: Scale) -> Figures:
    """As many starts as asked, each with managers, wardens and ranks of its own."""
    starts, load = scale.pick(30, 1), scale.pick(50, 1)
    managers, per_host = scale.pick(_MANAGERS, 2), scale.pick(_PER_HOST, 2)
    found = run_module(
        "supervisor_crowd", starts, managers, per_host, load, _SECONDS,
        scale.pick(_REST_SECONDS, 0.1), patience_seconds=2 * _SECONDS,
    )  # fmt: skip
    lost = [len(one) for one in found["lost"]]
    what = f"{managers} managers x {per_host} ranks beside a load of {load}"
    lines = (
        Line(
            what=f"healthy hosts lost in a start, {what}", unit="hosts",
            value=spread([float(count) for count in lost]),
            limit_name="all that were there", limit=spread([managers]),
            budget="0", met=not any(lost) and not any(found["missing"]),
        ),
        Line(what=f"start to the last pid, {what}", unit="s", value=spread(found["started"])),
    )  # fmt: skip
    reasons = "; ".join(sorted({reason for one in found["lost"] for reason in one})) or "none"
    notes = (f"{len(lost)} starts, {sum(lost)} hosts lost. What was said of them: {reasons}.",)
    return Figures(name=name, lines=lines, notes=notes)
