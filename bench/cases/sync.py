"""Thousands of simulated agents that only sync: are they answered in time, and what does it
cost?"""

from __future__ import annotations

import time
from typing import Any

from bench.figures import Figures, Line, spread
from bench.fleet import AgentProcess
from bench.limits.bare_server import start_bare_server
from bench.processes import list_family, sum_cpu_seconds
from bench.scale import Scale, say
from bench.system import Database, Scratch, start_server

name = "sync"
budget = "10 000 simulated agents syncing every 5 s on one controller core"


def run(scale: Scale) -> Figures:
    """Bare server, controller, bare server, controller, … for each number of agents."""
    lines: list[Line] = []
    notes: list[str] = []
    for count in scale.pick((1000, 10_000), (20,)):
        more_lines, more_notes = _run_count(scale, count)
        lines += more_lines
        notes += more_notes
    notes.append(
        "One keep-alive connection an agent, all in one client process on the same box, which "
        "takes its own share of the cores. "
        "Lateness is the answer's time beyond the wait that was asked for. Bare: the same uvicorn "
        "and Starlette, a route that "
        "sleeps as long and answers {}."
    )
    return Figures(name=name, lines=tuple(lines), notes=tuple(notes))


def _run_count(scale: Scale, count: int) -> tuple[list[Line], list[str]]:
    interval = scale.pick(5.0, 0.5)
    seconds = scale.pick(20.0, 1.0)
    warm = scale.pick(10.0, 1.0)
    rounds = scale.pick(3, 1)
    bare: list[dict[str, Any]] = []
    real: list[dict[str, Any]] = []
    with (
        Scratch() as scratch,
        Database(scratch) as database,
        AgentProcess() as pretenders,
        AgentProcess() as agents,
    ):
        url, bare_process = start_bare_server(scratch)
        place = start_server(scratch, database.make("holdfast"))
        place.connection.call(
            "PATCH", "/v1/config", {"set": {"sync_interval_seconds": interval}, "unset": []}
        )
        say(f"  registering {count:,} simulated hosts")
        began = time.monotonic()
        agents.register(place, count, 1, "sync")
        registered = time.monotonic() - began
        pretenders.order(do="pretend", url=url, count=count)
        for number in range(1, rounds + 1):
            bare.append(
                _one_round(pretenders, "/empty", interval, warm, seconds, [bare_process.pid], 0)
            )
            real.append(
                _one_round(
                    agents,
                    "/v1/agent/sync",
                    interval,
                    warm,
                    seconds,
                    [place.process.pid],
                    database.pid,
                )
            )
            say(
                f"  {count:,} agents, round {number}/{rounds}: bare {_words(bare[-1])}; "
                f"controller {_words(real[-1])}"
            )
    label = f"{count:,} agents"
    limit_name = "bare uvicorn route"
    missed = sum(found["missed"] for found in real)
    errors = {words: times for found in real for words, times in found["errors"].items()}
    in_time = missed == 0 and not errors
    cpu = spread([found["cpu"] for found in real])
    lines = [
        Line(
            what=f"{label}: controller CPU",
            unit="cores",
            value=cpu,
            limit_name=limit_name,
            limit=spread([found["cpu"] for found in bare]),
            budget="<= 1 core, none missed",
            met=cpu.median <= 1.0 and in_time,
        ),
        Line(
            what=f"{label}: PostgreSQL CPU",
            unit="cores",
            value=spread([found["postgres"] for found in real]),
        ),
        Line(
            what=f"{label}: answers",
            unit="1/s",
            value=spread([found["answers"] / seconds for found in real]),
            limit_name=limit_name,
            limit=spread([found["answers"] / seconds for found in bare]),
        ),
        Line(
            what=f"{label}: lateness p99",
            unit="ms",
            value=spread([found["p99"] * 1000 for found in real]),
            limit_name=limit_name,
            limit=spread([found["p99"] * 1000 for found in bare]),
        ),
    ]
    notes = [
        f"{label}: {missed} missed, {sum(found['early'] for found in real)} answered early, "
        f"errors {errors or 'none'}; "
        f"worst lateness {max(found['worst'] for found in real) * 1000:.0f} ms; registered in "
        f"{registered:.1f} s "
        f"({count / registered:.0f}/s)."
    ]
    return lines, notes


def _one_round(
    agents: AgentProcess,
    path: str,
    interval: float,
    warm: float,
    seconds: float,
    roots: list[int],
    postgres: int,
) -> dict[str, Any]:
    agents.send(do="sync", path=path, interval=interval, warm=warm, seconds=seconds)
    time.sleep(warm)
    family = [pid for root in roots for pid in list_family(root)]
    servers = list_family(postgres) if postgres else []
    before, before_postgres, began = (
        sum_cpu_seconds(family),
        sum_cpu_seconds(servers),
        time.monotonic(),
    )
    time.sleep(seconds)
    took = time.monotonic() - began
    cpu = (sum_cpu_seconds(family) - before) / took
    cpu_postgres = (sum_cpu_seconds(servers) - before_postgres) / took
    return {**agents.receive(), "cpu": cpu, "postgres": cpu_postgres}


def _words(found: dict[str, Any]) -> str:
    return (
        f"{found['cpu']:.2f} cores, p99 {found['p99'] * 1000:.0f} ms late, {found['missed']} missed"
    )
