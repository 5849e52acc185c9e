"""`python -m bench [NAME…] [--json] [--quick]`: run the benchmarks and print the table."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import cast

from bench.figures import Figures, render_table, to_plain
from bench.scale import Benchmark, Scale, say

NAMES = (
    "noop",
    "calls",
    "true",
    "own",
    "latency",
    "depth",
    "beat",
    "start",
    "sync",
    "idle",
    "exit",
    "trip",
    "code",
    "gangs",
    "gang-restart",
    "fleet-day",
    "forecast",
    "why",
    "fleet-cycle",
    "ledger",
    "workflow",
    "sessions",
    "pages",
    "paint",
    "grep",
    "stragglers",
    "supervisor",
    "supervisor-heartbeats",
    "supervisor-crowd",
)
RESULTS = Path(__file__).parent / "results"


def load_case(name: str) -> Benchmark:
    """The module of that name, as its silhouette."""
    return cast(Benchmark, importlib.import_module(f"bench.cases.{name.replace('-', '_')}"))


def run_case(name: str, scale: Scale) -> Figures:
    """Run one benchmark. A failure is a result too: the others still run."""
    started = time.monotonic()
    try:
        case = load_case(name)
        say(f"{name}: {case.budget}")
        found = case.run(scale)
        return Figures(
            name=name, lines=found.lines, notes=found.notes, seconds=time.monotonic() - started
        )
    except Exception as error:
        traceback.print_exc()
        return Figures(
            name=name, seconds=time.monotonic() - started, error=f"{type(error).__name__}: {error}"
        )


def describe_machine() -> dict[str, object]:
    """What the figures were taken on. The load before the run says how far to trust them."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for. Returns 0 when everything was measured, 1 otherwise; a missed budget
    is no failure."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all when none is given"
    )
    parser.add_argument("--json", action="store_true", help="print JSON on stdout and keep no file")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that it works, not how fast it is"
    )
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    # A terminal's hang-up or a TERM must unwind, so that every process that was started is stopped.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    report: dict[str, object] = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": given.quick,
        "machine": describe_machine(),
    }
    found = [run_case(name, Scale(given.quick)) for name in given.names or NAMES]
    report["load_average_after"] = os.getloadavg()
    report["benchmarks"] = [to_plain(figures) for figures in found]
    if given.json:
        print(json.dumps(report, indent=1))
    else:
        print(render_table(found))
        RESULTS.mkdir(exist_ok=True)
        target = (
            RESULTS / f"{str(report['at']).replace(':', '')}{'-quick' if given.quick else ''}.json"
        )
        target.write_text(json.dumps(report, indent=1) + "\n")
        print(f"\n{describe_machine()}\nwritten to {os.path.relpath(target)}")
    return 1 if any(figures.error for figures in found) else 0


if __name__ == "__main__":
    sys.exit(main())
