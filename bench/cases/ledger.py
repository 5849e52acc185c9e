"""The ledger of a simulated night adds up; what the minutes of a large fleet cost, and tallies a sync."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from bench.figures import Figures, Line, spread
from bench.held_hosts import lease_hosts
from bench.ledger_fleet import BEGAN, LedgerFleet
from bench.ledger_night import EVENING, Night
from bench.scale import Scale, say
from bench.system import Database, Scratch
from holdfast.store.postgres.connection.migrate import migrate

name = "ledger"
budget = (
    "a night of 64 GPUs adds up to the millisecond; a minute of 10,000 hosts takes at most 3 s of CPU; "
    "tallies cost syncs under 1 %"
)
MINUTE_CPU_SECONDS = 3.0
SHAPES = (("a task a host, in gangs of 16", 8, 16, 5), ("a job a GPU", 1, 1, 10))
"""The load of a large fleet: (words, GPUs of a task, tasks of a job, minutes that the leader closes at once)."""


def run(scale: Scale) -> Figures:
    """Live through the night, then sync the same hosts with tallies and without."""
    hours = scale.pick(8.0, 0.2)
    with Scratch() as scratch, Database(scratch) as database:
        night, syncs = database.make("night"), database.make("syncs")
        for dsn in (night, syncs):
            migrate(dsn)
        found = asyncio.run(_live(night, hours))
        costs = asyncio.run(_sync(syncs, scale))
        fleet = [line for n in range(len(SHAPES)) for line in _measure_fleet(database, n, scale)]
    plain, told = spread(costs["plain"]), spread(costs["told"])
    share = (told.median - plain.median) / plain.median / 12
    lines = (
        *(
            Line(
                what=f"night of {hours:g} h: GPU time that {what}",
                unit="ms",
                value=spread([float(found[one])]),
                limit_name=other,
                limit=spread([float(found[other])]),
                budget="equal",
                met=found[one] == found[other],
            )
            for what, one, other in (
                ("has a name", "named", "offered"),
                ("jobs hold", "held", "leased"),
                ("executors of calls hold", "executors", "executors_leased"),
            )
        ),
        Line(what="a minute closed", unit="ms", value=spread(found["closing"])),
        Line(
            what="a sync of a host with 8 tasks, each with a tally",
            unit="µs",
            value=told,
            limit_name="without tallies",
            limit=plain,
        ),
        *fleet,
    )
    hours_of = {str(n): f"{ms / 3.6e6:.3f}" for n, ms in sorted(found["names"].items())}
    notes = (
        f"{found['offered'] / 3.6e6:.6f} GPU-hours offered = {found['named'] / 3.6e6:.6f} named; "
        f"{found['leased'] / 3.6e6:.6f} leased = {found['held'] / 3.6e6:.6f} in rows of jobs",
        f"by name: {hours_of}",
        f"{found['calls']} calls in {found['executors'] / 3.6e6:.3f} GPU-hours of executors; "
        f"{found['machines']} machines rented and given back, {found['lost_machines']} lost with work: "
        + ", ".join(
            f"{name} {found[f'rented_{name}'] / 3.6e6:.3f}"
            for name in ("starting", "unused", "draining", "leased")
        )
        + " GPU-hours, each machine as in the book",
        f"{found['jobs']} jobs, {found['failures']} failures and stalls, {found['deaths']} deaths of the "
        "leader between reading and writing",
        f"a tally comes with one sync of twelve at 5 s, so tallies cost {share:+.2%} of syncs",
    )
    return Figures(name=name, lines=lines, notes=notes)


def _measure_fleet(database: Database, number: int, scale: Scale) -> list[Line]:
    """Return what minutes of a large fleet cost, on disk and of a processor, and to prune an hour."""
    words, gpus, ranks, minutes = SHAPES[number]
    hosts = scale.pick(10_000, 16)
    dsn = database.make(f"fleet{number}")
    migrate(dsn)
    fleet = LedgerFleet(dsn, database.pid, hosts, gpus, ranks)
    found = asyncio.run(_close_fleet(fleet, minutes, scale))
    closed = found["cpu"] / minutes
    where = f"{hosts:,} hosts of 8 GPUs, {words}"
    say(f"  {where}: {found}")
    return [
        Line(
            what=f"CPU of a minute, {minutes} at once, in leader and database, {where}",
            unit="s",
            value=spread([closed]),
            limit_name="of which the leader",
            limit=spread([found["leader"] / minutes]),
            budget="<= 3 s",
            met=closed <= MINUTE_CPU_SECONDS,
        ),
        Line(
            what=f"minutes of two days on disk, {where}",
            unit="GB",
            value=spread([found["hour_bytes"] * 48 / 1e9]),
        ),
        Line(
            what=f"CPU of pruning an hour of minutes, {where}",
            unit="s",
            value=spread([found["prune"]]),
        ),
    ]


async def _close_fleet(fleet: LedgerFleet, minutes: int, scale: Scale) -> dict[str, float]:
    """Let an hour pass in steps, as the leader closes it, and prune its minutes two days later."""
    await fleet.begin()
    costs = [await fleet.close(minutes) for _ in range(scale.pick(60 // minutes, 2))]
    steady = costs[1:]
    hour_bytes = fleet.weigh()["ledger_hours"]
    prune = await fleet.prune(BEGAN + timedelta(days=2, hours=1, minutes=1))
    await fleet.store.close()
    return {
        "cpu": statistics.median(cost.leader + cost.database for cost in steady),
        "leader": statistics.median(cost.leader for cost in steady),
        "wall": statistics.median(cost.wall for cost in steady),
        "hour_bytes": float(hour_bytes),
        "prune": prune,
    }


async def _live(dsn: str, hours: float) -> dict[str, Any]:
    night = Night(dsn, hosts=8, seed=64)
    await night.begin()
    closing: list[float] = []
    said = died = EVENING
    while night.now - EVENING < timedelta(hours=hours):
        await night.turn()
        began = time.perf_counter()
        minutes = await night.close_minutes()
        if minutes:
            closing.append((time.perf_counter() - began) * 1000 / minutes)
        if night.now - died > timedelta(minutes=31):
            died = night.now
            await night.die()
        if night.now - said > timedelta(hours=1):
            said = night.now
            say(f"  {said:%H:%M}, {len(night.tasks)} tasks, {night.jobs} jobs so far")
    await night.end()
    since = EVENING - timedelta(hours=1)
    (whole,) = await night.store.ledger.read_sums(since, night.now)
    by_job = await night.store.ledger.read_sums(since, night.now, by=["job"])
    rented = await _read_rented(night, since)
    await night.store.close()
    held = {s.key[0]: s.total_ms for s in by_job if s.key[0]}
    if held != {job: ms for job, ms in night.leased_ms.items() if ms}:
        raise RuntimeError("a job's time in the ledger is not that of its leases")
    return {
        **rented,
        "executors": sum(ms for job, ms in held.items() if job.startswith("exec-")),
        "executors_leased": night.executor_ms,
        "calls": night.calls, "machines": len(night.rented), "lost_machines": night.lost_machines,
        "offered": night.sum_offered(), "named": whole.total_ms, "names": whole.ms,
        "leased": sum(night.leased_ms.values()), "held": sum(held.values()), "closing": closing,
        "jobs": night.jobs, "failures": night.failures, "deaths": night.deaths,
    }  # fmt: skip


async def _read_rented(night: Night, since: datetime) -> dict[str, int]:
    """Return what the ledger and the book say of the rented machines. Raises RuntimeError where they
    differ for one of them."""
    sums = await night.store.ledger.read_sums(
        since, night.now, by=["host", "job"], filters={"pool": "pool"}
    )
    hosts = {(await night.store.hosts.get_host(host)).name: host for host in night.rented}
    found: dict[str, Counter[str]] = {host: Counter() for host in night.rented}
    for each in sums:
        host, job = hosts[each.key[0]], each.key[1]
        for name, ms in each.ms.items():
            found[host]["leased" if job else str(name)] += ms
    whole: Counter[str] = Counter()
    for host in night.rented:
        book = +Counter(night.find_rental(host))
        if book != +found[host]:
            raise RuntimeError(f"the ledger has {dict(found[host])} of {host}, and the book {book}")
        whole += found[host]
    return {f"rented_{name}": whole[name] for name in ("starting", "unused", "draining", "leased")}


async def _sync(dsn: str, scale: Scale) -> dict[str, list[float]]:
    """Microseconds of a sync of one host with 8 tasks, in batches, with tallies and without."""
    from holdfast.core.ledger.tally import Tally
    from holdfast.moves.values import HostSync
    from holdfast.store.postgres.store import PostgresStore

    store = PostgresStore(dsn)
    await store.open()
    mine = await lease_hosts(store, scale.pick(100, 3))
    tally = Tally(ms={"setting_up": 5, "loading": 60_000, "kept": 5_000_000}, now="kept", beaten=True, first_step=1, step=9)  # fmt: skip
    found: dict[str, list[float]] = {"plain": [], "told": []}
    for n in range(2 + 2 * scale.pick(15, 1)):
        what = ("plain", "told")[n % 2]
        syncs = [
            HostSync(
                host_id=h, incarnation="incarnation-1", live=tuple(keys), started=tuple(keys),
                tallies=tuple((k, tally) for k in keys) if what == "told" else (),
            )
            for h, keys in mine.items()
        ]  # fmt: skip
        began = time.perf_counter()
        await store.leases.sync_hosts(syncs)
        if n > 1:
            found[what].append((time.perf_counter() - began) * 1e6 / len(syncs))
    await store.close()
    return found
