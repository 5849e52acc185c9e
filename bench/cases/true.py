"""`/bin/true` jobs through a whole `holdfast up`, against a bare fork-exec-wait loop."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from functools import partial

from bench.costs import Meter, describe_refusal, list_cost_lines
from bench.figures import Figures, Line, spread
from bench.limits.fork_exec import TRUE, measure_fork_exec
from bench.scale import Scale, alternate, say, wait_until
from bench.system import QUEUE, ROLES, ROOT, Place, Scratch, list_role, start_up

name = "true"
budget = (
    ">= 0.2 of a bare fork-exec-wait loop with 2 slots, >= 0.3 with 16; its CPU <= 7.5 and <= 5 x"
)
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
_LIMIT = "fork-exec-wait, 1 core"


def run(scale: Scale) -> Figures:
    """Jobs per second from the first submission to the last end on record, per number of slots."""
    jobs, few = scale.pick(2000, 20), scale.pick(400, 10)
    lines: list[Line] = []
    notes = [f"{jobs} or {few} jobs a round, submitted in batches of 500."]
    for slots, budget, most in scale.pick(((2, 0.2, 7.5), (16, 0.3, 5.0)), ((2, 0.2, 7.5),)):
        with Scratch() as scratch:
            place = start_up(scratch, slots)
            place.make_queue()
            say(f"  {slots} slots")
            cost, bare_cost = _meter(place), Meter({})
            limits, systems = alternate(
                scale.rounds,
                partial(measure_fork_exec, scale.pick(2000, 50), bare_cost),
                partial(_measure_both, place, few, jobs, cost),
                ("fork-exec", f"{few} and {jobs} jobs"),
                "/s",
            )
        small, large = zip(*systems, strict=True)
        lines += [
            _compare(f"{TRUE}, {slots} slots", large, limits, budget),
            _compare(f"the same, {few} jobs", small, limits, None),
            *list_cost_lines(f"a job with {slots} slots", cost, _LIMIT, bare_cost, most),
        ]
        notes += describe_refusal(cost, bare_cost)
    if PEERS_PYTHON.exists():
        found = [_measure_hyperqueue(jobs, 16) for _ in range(scale.rounds)]
        lines.append(_compare("HyperQueue, 16 slots, output in files", found, limits, None))
    else:
        notes.append("HyperQueue is measured beside it where `make bench-peers` has installed it.")
    return Figures(name=name, lines=tuple(lines), notes=tuple(dict.fromkeys(notes)))


def _measure_hyperqueue(jobs: int, slots: int) -> float:
    """Return the processes per second of another dispatcher that keeps each output in files."""
    script = ROOT / "bench" / "peers" / "use_hyperqueue.py"
    command = [str(PEERS_PYTHON), str(script), TRUE, str(jobs), str(slots)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return jobs / float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def _meter(place: Place) -> Meter:
    parts = {r: partial(list_role, place, r) for r in ROLES if list_role(place, r)}
    return Meter(parts, alone="guardian", started="tasks")


def _measure_both(place: Place, few: int, jobs: int, cost: Meter) -> tuple[float, float]:
    small = _measure(place, few)
    with cost.count(jobs):
        return small, _measure(place, jobs)


def _compare(
    what: str, values: Sequence[float], limits: Sequence[float], budget: float | None
) -> Line:
    value, limit = spread(values), spread(limits)
    return Line(
        what=what,
        unit="jobs/s",
        value=value,
        limit_name=_LIMIT,
        limit=limit,
        budget="" if budget is None else f">= {budget} x",
        met=None if budget is None else value.median / limit.median >= budget,
    )


def _measure(place: Place, jobs: int) -> float:
    began = time.monotonic()
    place.submit_many([{"argv": [TRUE], "queue": QUEUE}] * jobs, batch=500)
    wait_until(
        lambda: place.unfinished(QUEUE) == 0, f"{jobs} jobs are over", 600, every_seconds=0.05
    )
    seconds = time.monotonic() - began
    failed = place.connection.call("GET", f"/v1/jobs?state=failed&queue={QUEUE}&limit=1")["items"]
    if failed:
        raise RuntimeError(f"a job failed: {failed[0]['reason']}")
    return jobs / seconds
