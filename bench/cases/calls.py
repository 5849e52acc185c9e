"""Calls of Python functions: at the store, and through a whole `holdfast up --app`, beside a raw claim
loop and PgQueuer on the same machine in the same run; and a queue of several models on simulated time."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec

from bench.call_store import measure_calls, prepare
from bench.figures import Figures, Line, spread
from bench.limits.pgqueuer_loop import PGQUEUER_BATCH, make_environment, measure_pgqueuer
from bench.limits.raw_claim import measure_raw_claims
from bench.scale import Scale, say
from bench.system import Database, Place, Scratch, start_up
from bench.warm_queue import QueueShape, choose_naively, choose_warm, simulate_queue

name = "calls"
budget = (
    ">= 0.75 of a raw batch-100 claim loop and >= 1.2 of PgQueuer, submission and results included"
)
_RAW = "raw claim loop"
LARGE, SMALL = 1000, 50  # what an executor takes of calls that take no time, and of 1 ms
_APP = """
import time
import holdfast

@holdfast.task
def double(n: int) -> int:
    return 2 * n

@holdfast.task
def spin(n: int) -> list[float]:
    began = time.monotonic()
    while time.monotonic() < began + 0.001:
        pass
    return [began, time.monotonic()]
"""
_CLIENT = """
import json, sys, time
from benchtasks import double, spin
calls, spins = int(sys.argv[1]), int(sys.argv[2])
assert list(double.map(range(100))) == [2 * n for n in range(100)]  # an executor is there
began = time.monotonic()
total = sum(double.map(range(calls)))
seconds = time.monotonic() - began
assert total == calls * (calls - 1), total
times = list(spin.map(range(spins)))
times.sort()
steady = times[len(times) // 10:]
busy = sum(end - begin for begin, end in steady)
whole = max(end for _, end in steady) - min(begin for begin, _ in steady)
print(json.dumps([seconds, busy / whole]))
"""


class _Rates(msgspec.Struct):
    """Readings of one kind, a round each."""

    raw: list[float] = []
    large: list[float] = []
    small: list[float] = []
    system: list[float] = []
    busy: list[float] = []
    pgqueuer: list[float] = []


def run(scale: Scale) -> Figures:
    """Calls per second, and the share of a slot that calls of a millisecond keep busy."""
    calls, jobs = scale.pick(100_000, 500), scale.pick(20_000, 300)
    rates = _Rates()
    with Scratch() as scratch:
        python = make_environment(scratch.folder / "pgqueuer") if not scale.quick else None
        with Database(scratch) as database:
            limit, dsn, other = (database.make(each) for each in ("limit", "calls", "pgqueuer"))
            prepare(dsn, 2)
            place = _start_app(scratch)
            for number in range(scale.rounds):
                rates.raw.append(measure_raw_claims(limit, scale.pick(50_000, 500)))
                rates.large.append(calls / measure_calls(dsn, calls, 2, LARGE, 2 * number))
                rates.small.append(calls / measure_calls(dsn, calls, 2, SMALL, 2 * number + 1))
                seconds, busy = _run_client(place, calls, scale.pick(4000, 50))
                rates.system.append(calls / seconds)
                rates.busy.append(100 * busy)
                if python is not None:
                    submit, ran = measure_pgqueuer(python, other, jobs, PGQUEUER_BATCH)
                    rates.pgqueuer.append(jobs / (submit + ran))
                say(f"  round {number + 1}/{scale.rounds}: {_last(rates)}")
    return Figures(
        name=name, lines=(*_list_lines(rates), *_list_warm(scale)), notes=_list_notes(calls)
    )


def _last(rates: _Rates) -> str:
    named = ((each, getattr(rates, each)) for each in rates.__struct_fields__)
    return ", ".join(f"{each} {found[-1]:,.2f}" for each, found in named if found)


def _start_app(scratch: Scratch) -> Place:
    (scratch.folder / "up").mkdir(exist_ok=True)
    (scratch.folder / "up" / "benchtasks.py").write_text(_APP)
    return start_up(scratch, slots=1, more=("--app", "benchtasks"))


def _run_client(place: Place, calls: int, spins: int) -> tuple[float, float]:
    folder = place.folder.parent
    client = folder / "client.py"
    client.write_text(_CLIENT)
    command = [sys.executable, str(client), str(calls), str(spins)]
    done = subprocess.run(
        command, cwd=folder, env=place.environ(), capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise RuntimeError(f"the client ended with {done.returncode}:\n{done.stderr[-2000:]}")
    seconds, busy = json.loads(done.stdout.splitlines()[-1])
    return float(seconds), float(busy)


def _list_lines(rates: _Rates) -> list[Line]:
    raw, system = spread(rates.raw), spread(rates.system)
    busy = spread(rates.busy)
    lines = [
        Line(
            what=f"at the store in batches of {LARGE}, submission and results included",
            unit="calls/s",
            value=spread(rates.large),
            limit_name=_RAW,
            limit=raw,
        ),
        Line(
            what=f"at the store in batches of {SMALL}, the same",
            unit="calls/s",
            value=spread(rates.small),
            limit_name=_RAW,
            limit=raw,
        ),
        Line(
            what="map through up --app, submission and results included",
            unit="calls/s",
            value=system,
            limit_name=_RAW,
            limit=raw,
            budget=">= 0.75 x",
            met=system.median >= 0.75 * raw.median,
        ),
        Line(
            what="share of its slot that calls of 1 ms keep busy",
            unit="%",
            value=busy,
            limit_name="all of it",
            limit=spread([100.0]),
            budget=">= 92",
            met=busy.median >= 92,
        ),
    ]
    if rates.pgqueuer:
        other = spread(rates.pgqueuer)
        lines.insert(
            3,
            Line(
                what="the same beside PgQueuer, whose jobs return nothing",
                unit="calls/s",
                value=system,
                limit_name="PgQueuer",
                limit=other,
                budget=">= 1.2 x",
                met=system.median >= 1.2 * other.median,
            ),
        )
    return lines


def _list_warm(scale: Scale) -> list[Line]:
    shape = QueueShape(hours=scale.pick(24.0, 0.2))
    seeds = range(scale.rounds)
    warm = [simulate_queue(shape, choose_warm, seed) for seed in seeds]
    naive = [simulate_queue(shape, choose_naively, seed) for seed in seeds]
    who = "oldest first"
    return [
        Line(
            what="calls of 6 models whose model was loaded (simulated)",
            unit="%",
            value=spread([100 * each.warm for each in warm]),
            limit_name=who,
            limit=spread([100 * each.warm for each in naive]),
        ),
        Line(
            what="longest wait of a call of these",
            unit="s",
            value=spread([each.longest_wait_seconds for each in warm]),
            limit_name=who,
            limit=spread([each.longest_wait_seconds for each in naive]),
        ),
        Line(
            what="longest time that a model with calls was passed over",
            unit="s",
            value=spread([each.longest_passed_seconds for each in warm]),
            limit_name=who,
            limit=spread([each.longest_passed_seconds for each in naive]),
        ),
    ]


def _list_notes(calls: int) -> tuple[str, ...]:
    return (
        f"{calls} calls a round. At the store: 2 executors that answer at once, and a "
        "commit that is durable for each exchange. Through `up`: one slot; client, controller, "
        "PostgreSQL, agent and executor share the machine. The raw loop submits nothing and keeps no "
        "result.",
        f"PgQueuer: batches of {PGQUEUER_BATCH}, the quickest of 10, 100 and 500.",
        "Simulated: 4 executors, calls of 2 s, a load of 20 s, 0.7 of the executors' time in calls.",
    )
