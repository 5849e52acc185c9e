"""`python -m bench [NAME…] [--json] [--quick] [--keep]`: print the machine's own limits, run the
benchmarks, print the table, and warn of each row with a budget that is worse by a tenth than in the run
that the docs keep."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import cast

from bench.figures import Figures, render_table, to_plain
from bench.kept import KeptRun, keep, list_rows, list_warnings, merge, read_kept
from bench.machine import measure_machine
from bench.scale import Benchmark, Scale, say
from bench.system import ROOT

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
CASE_SECONDS = 1200
"""A case that takes longer has hung, and the others still run. The longest takes five minutes, and
the rest beside burners as long as was asked for."""


def load_case(name: str) -> Benchmark:
    """The module of that name, as its silhouette."""
    return cast(Benchmark, importlib.import_module(f"bench.cases.{name.replace('-', '_')}"))


def run_case(name: str, scale: Scale) -> Figures:
    """Run one benchmark. A failure is a result too, and so is a case that hangs: the others still
    run."""
    started = time.monotonic()
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(CASE_SECONDS)
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
    finally:
        signal.alarm(0)


class CaseHung(Exception):
    """Says that a case was not over in time. It is no TimeoutError, which a case may catch."""


def _give_up(number: int, frame: object) -> None:
    raise CaseHung(f"the case was not over within {CASE_SECONDS} s")


def _name_commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


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
    parser.add_argument(
        "--keep", action="store_true", help="write the rows to the docs, as those to compare with"
    )
    given = parser.parse_args(arguments)
    if given.keep and given.quick:
        parser.error("--quick measures nothing that is worth keeping")
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    # A terminal's hang-up or a TERM must unwind, so that every process that was started is stopped.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    report: dict[str, object] = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": given.quick,
        "machine": (machine := measure_machine(quick=given.quick)),
    }
    for what, words in machine.items():
        say(f"{what}: {words}")
    names = given.names or NAMES
    found = [run_case(name, Scale(given.quick)) for name in names]
    rows = list_rows(found)
    kept = read_kept(ROOT)
    report["load_average_after"] = os.getloadavg()
    report["warnings"] = warnings = [] if given.quick else list_warnings(kept, rows, names)
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
        took = sum(figures.seconds for figures in found)
        print(f"\n{took / 60:.0f} minutes; written to {os.path.relpath(target)}")
    for warning in warnings:
        print(warning, file=sys.stderr)
    if given.keep:
        run = KeptRun(commit=_name_commit(), at=str(report["at"]), machine=machine, rows=rows)
        keep(merge(kept, run, names), ROOT)
    return 1 if any(figures.error for figures in found) else 0


if __name__ == "__main__":
    sys.exit(main())
