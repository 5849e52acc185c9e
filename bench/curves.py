"""`python -m bench.curves [--quick] [NAME …]`: what Holdfast costs as its load grows, as JSON on stdout.

Three curves: jobs queued, hosts, ranks of a gang. Each point is a database and a controller of its
own. `bench/draw_curves.py` makes the pictures of the docs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.cases.depth import Lane
from bench.cases.gangs import Cluster
from bench.fleet import AgentProcess
from bench.processes import list_family, read_memory_mb, sum_cpu_seconds
from bench.scale import say
from bench.system import Database, Scratch, start_server

Point = dict[str, float]
CLAIMS = 2000
INTERVAL_SECONDS = 5.0


def measure_queued(depth: int, claims: int = CLAIMS) -> Point:
    """CPU milliseconds for each job that is claimed and completed with `depth` queued behind."""
    with Scratch() as scratch, Database(scratch) as database, AgentProcess() as agents:
        lane = Lane(scratch, database, agents, "lane", depth)
        lane.measure(claims)  # the first round warms up
        pids = list_family(lane.place.process.pid)
        servers = list_family(database.pid)
        lane.fill(depth + claims)
        time.sleep(1.0)  # the server process that filled it has ended, and its CPU is not counted
        before = sum_cpu_seconds(pids), sum_cpu_seconds(servers)
        rate = lane.claim(claims)
        after = sum_cpu_seconds(pids), sum_cpu_seconds(servers)
        return {
            "x": depth,
            "jobs a second": rate,
            "controller, CPU ms a job": (after[0] - before[0]) / claims * 1000,
            "PostgreSQL, CPU ms a job": (after[1] - before[1]) / claims * 1000,
            "controller, MB": read_memory_mb(lane.place.process.pid)[0],
        }


def measure_hosts(count: int, seconds: float = 20.0) -> Point:
    """Share of a core for `count` idle hosts that sync every five seconds."""
    with Scratch() as scratch, Database(scratch) as database, AgentProcess() as agents:
        place = start_server(scratch, database.make("holdfast"))
        change = {"set": {"sync_interval_seconds": INTERVAL_SECONDS}, "unset": []}
        place.connection.call("PATCH", "/v1/config", change)
        agents.register(place, count, 1, "curve")
        warm = 2 * INTERVAL_SECONDS
        order = {"interval": INTERVAL_SECONDS, "warm": warm, "seconds": seconds}
        agents.send(do="sync", path="/v1/agent/sync", **order)
        time.sleep(warm)
        pids, servers = list_family(place.process.pid), list_family(database.pid)
        before = sum_cpu_seconds(pids), sum_cpu_seconds(servers)
        began = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        cpu = sum_cpu_seconds(pids) - before[0], sum_cpu_seconds(servers) - before[1]
        found: dict[str, Any] = agents.receive()
        return {
            "x": count,
            "controller, % of a core": cpu[0] / took * 100,
            "PostgreSQL, % of a core": cpu[1] / took * 100,
            "lateness p99, ms": found["p99"] * 1000,
            "controller, MB": read_memory_mb(place.process.pid)[0],
        }


def measure_ranks(ranks: int, hosts: int) -> Point:
    """Milliseconds until a gang is reserved, and until each host has heard its launch orders: by the
    clock, and CPU of this process, which is the controller, and of PostgreSQL."""

    async def run(dsn: str, count_cpu: Callable[[], float]) -> list[float]:
        cluster = Cluster(dsn)
        await cluster.store.open()
        try:
            await cluster.add_hosts(hosts, ranks // hosts)
            await cluster.submit([ranks])
            before = count_cpu()
            took = [await cluster.admit(1)]
            between = count_cpu()
            took.append(await cluster.start_gang())
            return [*took, between - before, count_cpu() - between]
        finally:
            await cluster.store.close()

    with Scratch() as scratch, Database(scratch) as database:

        def count_cpu() -> float:
            return time.process_time() + sum_cpu_seconds(list_family(database.pid))

        seconds = asyncio.run(run(database.make("gang"), count_cpu))
    kinds = ("reserved, ms", "claimed and told, ms", "reserved, CPU ms", "claimed and told, CPU ms")
    found = {kind: each * 1000 for kind, each in zip(kinds, seconds, strict=True)}
    return {"x": ranks, **found}


def main() -> int:
    """Measure every point and print them."""
    parser = argparse.ArgumentParser(prog="python -m bench.curves", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works")
    names = ("queued", "hosts", "ranks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names) + "; all of them")
    given = parser.parse_args()
    quick, chosen = given.quick, given.names or names
    if not set(chosen) <= set(names):
        parser.error(f"a NAME is one of {', '.join(names)}")
    depths = (2000, 4000) if quick else (1000, 10_000, 100_000, 1_000_000)
    counts = (10, 20) if quick else (10, 100, 1000, 10_000)
    gangs = ((2, 1), (16, 2)) if quick else ((8, 1), (64, 8), (512, 64), (2048, 256), (8000, 1000))
    rounds: dict[str, list[Callable[[], Point]]] = {
        "queued": [partial(measure_queued, d, 100 if quick else CLAIMS) for d in depths],
        "hosts": [partial(measure_hosts, count, 2.0 if quick else 20.0) for count in counts],
        "ranks": [partial(measure_ranks, ranks, hosts) for ranks, hosts in gangs],
    }
    curves: dict[str, list[Point]] = {}
    for name in chosen:
        for measure in rounds[name]:
            curves.setdefault(name, []).append(measure())
            say(f"  {name}: {curves[name][-1]}")
    print(json.dumps(curves, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
