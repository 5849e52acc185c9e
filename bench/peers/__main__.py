"""`python -m bench.peers [--quick] [--write PAGE]`: Holdfast and other systems in turns, as a table.

Every round measures each system once, so that a noisy neighbour affects all of them. Medians of
the rounds are printed as Markdown; `--write` puts the table between the markers of a page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.figures import percentile
from bench.limits.raw_claim import measure_raw_claims
from bench.scale import say
from bench.system import (
    QUEUE,
    ROOT,
    Database,
    Place,
    Scratch,
    await_place,
    choose_port,
    clean_environment,
    holdfast_command,
)

HERE = Path(__file__).parent
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
MARKERS = ("<!-- peers: begin -->", "<!-- peers: end -->")
SECONDS = 900
NAMES = {
    "holdfast": "Holdfast, Python calls, results kept",
    "pgqueuer": "PgQueuer, no results",
    "procrastinate": "Procrastinate, no results",
    "celery": "Celery on Redis, results kept",
    "dramatiq": "Dramatiq on Redis, results kept",
}


class Peers:
    """The systems that can be measured here, each behind one call."""

    def __init__(self, scratch: Scratch, database: Database) -> None:
        self._database = database
        self._place = start_up_with_app(scratch)
        self.names = ["holdfast", "pgqueuer", "procrastinate"]
        self._redis = ""
        self._made = 0
        if shutil.which("redis-server"):
            port = choose_port()
            command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
            scratch.start([*command, "--dir", str(scratch.folder)], "redis")
            self._redis = f"redis://127.0.0.1:{port}/0"
            self.names += ["celery", "dramatiq"]

    def ask(self, name: str, what: str, count: int) -> dict[str, object]:
        """Run one system's script; returns what it printed."""
        python, environ, target = str(PYTHON), clean_environment(), self._redis
        if name == "holdfast":
            python, target = sys.executable, "-"
            environ = {**self._place.environ(), "PYTHONPATH": str(HERE)}
        elif name in ("pgqueuer", "procrastinate"):
            self._made += 1
            target = self._database.make(f"{name}{self._made}")
        found = subprocess.run(
            [python, str(HERE / f"use_{name}.py"), target, what, str(count)],
            env=environ, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        if found.returncode:
            raise RuntimeError(f"{name}: {found.stderr[-2000:]}")
        answer: dict[str, object] = json.loads(found.stdout)
        return answer


def start_up_with_app(scratch: Scratch) -> Place:
    """`holdfast up` with the functions of this comparison, ready to run calls."""
    data = scratch.folder / "up" / "data"
    data.parent.mkdir()
    command = [*holdfast_command(), "up", "--port", "0", "--slots", str(os.cpu_count() or 1)]
    command += ["--data", str(data), "--app", "peer_tasks", "--app-path", str(HERE)]
    place = await_place(scratch, scratch.start(command, "up", cwd=data.parent), data, "up")
    place.make_queue(QUEUE)
    return place


def measure(rounds: int, calls: int, samples: int) -> str:
    """Return the table."""
    rates: dict[str, list[float]] = {}
    starts: dict[str, list[float]] = {}
    with Scratch() as scratch, Database(scratch) as database:
        peers = Peers(scratch, database)
        raw_dsn = database.make("raw")
        for turn in range(rounds):
            rates.setdefault("raw", []).append(measure_raw_claims(raw_dsn, 5 * calls))
            for name in peers.names:
                found = peers.ask(name, "jobs", calls)
                seconds = float(found["submit_seconds"]) + float(found["run_seconds"])  # type: ignore[arg-type]  # JSON of the peer
                rates.setdefault(name, []).append(calls / seconds)
                found = peers.ask(name, "latency", samples)
                starts.setdefault(name, []).extend(found["milliseconds"])  # type: ignore[arg-type]  # JSON of the peer
                say(f"  round {turn + 1}: {name} {rates[name][-1]:,.0f}/s")
    return draw_table(rates, starts, calls)


def draw_table(rates: dict[str, list[float]], starts: dict[str, list[float]], calls: int) -> str:
    """Markdown: calls a second and their ratio to the raw loop, idle submit to start."""
    raw = statistics.median(rates["raw"])
    lines = [
        f"| {calls:,} no-op calls, submission included | calls/s | of the raw loop | submit to start, p50 | p99 |",
        "|---|---|---|---|---|",
    ]
    for name, title in NAMES.items():
        if name not in rates:
            continue
        rate, ms = statistics.median(rates[name]), starts[name]
        p50, p99 = percentile(ms, 50), percentile(ms, 99)
        lines.append(f"| {title} | {rate:,.0f} | {rate / raw:.2f} | {p50:.1f} ms | {p99:.1f} ms |")
    lines.append(f"| raw claim loop, nothing submitted or kept | {raw:,.0f} | 1 | | |")
    when = time.strftime("%Y-%m-%d", time.gmtime())
    load = os.getloadavg()[1]
    lines += ["", f"{when}, {os.cpu_count()} cores, load average {load:.1f} after the run."]
    return "\n".join(lines)


def write_between(page: Path, table: str) -> None:
    """Put the table between the markers of a page. Raises ValueError where it has none."""
    begin, end = MARKERS
    text, count = re.subn(
        f"(?s){re.escape(begin)}.*?{re.escape(end)}",
        lambda _: f"{begin}\n{table}\n{end}",
        page.read_text(),
    )
    if count != 1:
        raise ValueError(f"{page} needs {begin} and {end}, once")
    page.write_text(text)


def main(measure: Callable[[int, int, int], str] = measure) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page that has the markers")
    given = parser.parse_args()
    if not PYTHON.exists():
        parser.error("the other systems are not installed; `make bench-peers` does that")
    table = measure(*((1, 300, 3) if given.quick else (3, 3_000, 30)))
    print(table)
    if given.write:
        write_between(given.write, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
