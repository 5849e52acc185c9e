"""`/bin/true` through a whole `holdfast up --dsn` on a packaged PostgreSQL, against the embedded one."""

from __future__ import annotations

import subprocess
import time
from functools import partial

from bench.figures import Figures, Line, spread
from bench.scale import Scale, alternate, say, wait_until
from bench.stock_server import StockServer, find_packaged
from bench.system import QUEUE, Place, Scratch, holdfast_command, start_up

name = "own"
budget = "a user's own PostgreSQL takes <= 1.2 of the embedded one's time"
RATIO = 1.2


def run(scale: Scale) -> Figures:
    """Milliseconds of one `holdfast run -- true`, and of many jobs that were submitted at once, on
    each of the two servers."""
    many = scale.pick(400, 10)
    if find_packaged() is None:
        return Figures(name=name, notes=("No packaged PostgreSQL is installed; run `make tools`.",))
    with StockServer() as stock, Scratch() as scratch:
        places = [
            start_up(scratch, 2, "embedded"),
            start_up(scratch, 2, "own", more=["--dsn", stock.dsn()]),
        ]
        for place in places:
            place.make_queue()
            _run_one(scratch, place)  # the first plans every statement
            _run_many(10, place)
        lines = []
        for what, rounds, measure in (
            ("`holdfast run -- true`", scale.pick(31, 1), partial(_run_one, scratch)),
            (f"{many} x true", scale.rounds, partial(_run_many, many)),
        ):
            say(f"  {what}")
            embedded, own = alternate(
                rounds,
                partial(measure, places[0]),
                partial(measure, places[1]),
                ("embedded", "own"),
                "ms",
            )
            value, limit = spread(own), spread(embedded)
            lines.append(
                Line(
                    what=f"{what} on a packaged PostgreSQL",
                    unit="ms",
                    value=value,
                    limit_name="embedded",
                    limit=limit,
                    budget=f"<= {RATIO} x",
                    met=value.median <= RATIO * limit.median,
                )
            )
    note = "The packaged server is as its package sets it up, reached over loopback."
    return Figures(name=name, lines=tuple(lines), notes=(note,))


def _run_one(scratch: Scratch, place: Place) -> float:
    began = time.monotonic()
    subprocess.run(
        [*holdfast_command(), "run", "--", "true"],
        env=place.environ(),
        cwd=scratch.folder,
        check=True,
        capture_output=True,
    )
    return (time.monotonic() - began) * 1000


def _run_many(many: int, place: Place) -> float:
    began = time.monotonic()
    place.submit_many([{"argv": ["/bin/true"], "queue": QUEUE}] * many, batch=500)
    wait_until(lambda: place.unfinished(QUEUE) == 0, f"{many} jobs are over", 600)
    return (time.monotonic() - began) * 1000
