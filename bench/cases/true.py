"""`/bin/true` jobs through a whole `holdfast up`, against a bare fork-exec-wait loop."""

from __future__ import annotations

import time
from functools import partial

from bench.figures import Figures, Line, spread
from bench.limits.fork_exec import TRUE, measure_fork_exec
from bench.scale import Scale, alternate, say, wait_until
from bench.system import QUEUE, Place, Scratch, start_up

name = "true"
budget = ">= 0.5 of a bare fork-exec-wait loop"


def run(scale: Scale) -> Figures:
    """Jobs per second from the first submission to the last end on record, per number of slots."""
    jobs = scale.pick(400, 20)
    lines = []
    for slots in scale.pick((2, 16), (2,)):
        with Scratch() as scratch:
            place = start_up(scratch, slots)
            place.make_queue()
            say(f"  {slots} slots")
            limits, systems = alternate(
                scale.rounds,
                lambda: measure_fork_exec(scale.pick(2000, 50)),
                partial(_measure, place, jobs),
                ("fork-exec", "jobs"),
                "/s",
            )
        ratio = spread(systems).median / spread(limits).median
        lines.append(
            Line(
                what=f"{TRUE}, {slots} slots",
                unit="jobs/s",
                value=spread(systems),
                limit_name="fork-exec-wait, 1 core",
                limit=spread(limits),
                budget=">= 0.5",
                met=ratio >= 0.5,
            )
        )
    return Figures(
        name=name, lines=tuple(lines), notes=(f"{jobs} jobs a round, submitted in batches of 500.",)
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
