"""A day of a pool of 1,000 hosts on simulated time, by the cycle's decisions and by simpler rules."""

from __future__ import annotations

import time

from bench.figures import Figures, Line, spread
from bench.fleet_day import Day, Report, Rule, decide, decide_naively, keep_all
from bench.scale import Scale, say

name = "fleet-day"
budget = "a day of 1,000 hosts in seconds; cost and waiting beside the naive rule"
SEEDS = (1, 2, 3)


def run(scale: Scale) -> Figures:
    """Live through the same days by each rule."""
    hosts = scale.pick(1000, 50)
    rules: dict[str, tuple[Rule, float]] = {
        "cycle": (decide, 3.0),
        "eager cycle": (decide, 0.5),
        "naive": (decide_naively, 3.0),
        "all": (keep_all, 3.0),
    }
    found: dict[str, list[Report]] = {word: [] for word in rules}
    seconds = []
    for seed in SEEDS[: scale.pick(3, 1)]:
        for word, (rule, jobs_per_host) in rules.items():
            began = time.perf_counter()
            found[word].append(Day(hosts, seed, jobs_per_host).run(rule))
            if word == "cycle":
                seconds.append(time.perf_counter() - began)
        say(f"  day {seed}: ${found['cycle'][-1].usd:,.0f}, naive ${found['naive'][-1].usd:,.0f}")
    lines = [
        Line(what=f"a day of {hosts} hosts, decided", unit="s", value=spread(seconds)),
        *_compare(found, "usd", "cost of the day", "$"),
        *_compare(found, "mean_wait", "mean wait for a host", "s"),
        *_compare(found, "p95_wait", "95th percentile of waits", "s"),
        *_compare(found, "spawned", "machines rented", "machines"),
    ]
    jobs = found["cycle"][0]
    notes = [
        f"{jobs.jobs:,} jobs a day of 10 min; useful work alone costs ${jobs.busy_usd:,.0f}",
        "naive: one machine a waiting job, given back when idle; all: the whole pool all day",
        "cycle: the default jobs_per_host of 3; eager: 0.5, two hosts a waiting job",
    ]
    return Figures(name=name, lines=lines, notes=notes)


def _compare(found: dict[str, list[Report]], field: str, what: str, unit: str) -> list[Line]:
    values = {word: spread([getattr(r, field) for r in days]) for word, days in found.items()}
    return [
        Line(
            what=f"{what}, {word}",
            unit=unit,
            value=values[word],
            limit_name="naive",
            limit=values["naive"],
        )
        for word in ("cycle", "eager cycle", "all")
    ]
