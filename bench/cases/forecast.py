"""A simulated day of a pool in which each job is told when it should start, and the starts that followed."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Sequence

import msgspec

from bench.figures import Figures, Line, spread
from bench.forecast_day import ForecastDay, Told, decide_and_tell
from bench.mixed_day import MixedDay
from bench.scale import Scale, say

name = "forecast"
budget = "median error under 25 % of the wait; the interval holds 80 % of the starts"
SEEDS = (1, 2, 3)
MIXED_SEEDS = (1, 3)
BOUND_ERROR, BOUND_HELD = 25.0, 80.0
KEEP = "HOLDFAST_BENCH_FORECASTS"
"""The environment's name for a file that each forecast is written to, beside its start."""


def run(scale: Scale) -> Figures:
    """Live through days of a small and of a large pool, and compare each forecast with the start."""
    sizes = {50: 300.0, 1000: 900.0} if scale.pick(1, 0) else {20: 3600.0}
    lines: list[Line] = []
    notes: list[str] = []
    kept: list[tuple[int, int, Told]] = []
    for hosts, every in sizes.items():
        errors, held, costs = [], [], []
        for seed in SEEDS[: scale.pick(3, 1)]:
            day = ForecastDay(hosts, seed, every)
            began = time.perf_counter()
            day.run(decide_and_tell)
            costs.append(time.perf_counter() - began)
            kept += [(hosts, seed, told) for told in day.told]
            error, share = judge(day.told)
            errors.append(error)
            held.append(share)
            said = f"{len(day.told):,} starts foretold, error {error:.0f} %, held {share:.0f} %"
            say(f"  {hosts} hosts, day {seed}: {said}")
            notes.append(f"{hosts} hosts, day {seed}: {said}; {day.silent} jobs without a forecast")
        lines += [
            Line(
                what=f"error of the wait, median, {hosts} hosts",
                unit="%",
                value=spread(errors),
                limit_name="bound",
                limit=spread([BOUND_ERROR]),
            ),
            Line(
                what=f"starts within the interval, {hosts} hosts",
                unit="%",
                value=spread(held),
                limit_name="bound",
                limit=spread([BOUND_HELD]),
            ),
            Line(what=f"a day of {hosts} hosts, foretold", unit="s", value=spread(costs)),
        ]
    lines += _run_mixed(scale, notes)
    _keep(kept)
    notes.append(
        "the day starts jobs every 30 s, so forecasts count up to the next of these moments"
    )
    return Figures(name=name, lines=lines, notes=notes)


def _run_mixed(scale: Scale, notes: list[str]) -> list[Line]:
    """Live through days of a small cluster with jobs of many sizes and two priorities, where few ends decide
    over a start, and large jobs come that go first."""
    hours = scale.pick(11.0, 1.5)
    judged = []
    for seed in MIXED_SEEDS[: scale.pick(2, 1)]:
        told = MixedDay(seed, hours).run()
        judged.append(judge(told))
        error, held = judged[-1]
        said = f"{len(told)} starts foretold, error {error:.0f} %, held {held:.0f} %"
        say(f"  64 GPUs, mixed, day {seed}: {said}")
        notes.append(f"64 GPUs, mixed, day {seed}: {said}")
    return [
        Line(
            what=f"{what}, 64 GPUs, mixed",
            unit="%",
            value=spread([each[i] for each in judged]),
            limit_name="bound",
            limit=spread([bound]),
        )
        for i, (what, bound) in enumerate(
            (("error of the wait, median", BOUND_ERROR), ("starts within the interval", BOUND_HELD))
        )
    ]


def judge(told: Sequence[Told]) -> tuple[float, float]:
    """Return the median error in percent of the wait, and the percentage of starts that the intervals
    held."""
    if not told:
        return 100.0, 0.0
    error = statistics.median(each.error for each in told)
    return 100.0 * error, 100.0 * sum(each.held for each in told) / len(told)


def _keep(kept: Sequence[tuple[int, int, Told]]) -> None:
    """Write each forecast beside its start, a line of JSON each, where a file is named for them."""
    path = os.environ.get(KEEP)
    if path:
        with open(path, "w") as file:
            for hosts, seed, told in kept:
                row = {"hosts": hosts, "seed": seed, **msgspec.to_builtins(told)}
                file.write(json.dumps(row) + "\n")
