"""The ledger of a simulated night adds up; what its minutes cost the leader, and its tallies a sync."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

from bench.figures import Figures, Line, spread
from bench.held_hosts import lease_hosts
from bench.ledger_night import EVENING, Night
from bench.scale import Scale, say
from bench.system import Database, Scratch
from holdfast.store.postgres.connection.migrate import migrate

name = "ledger"
budget = "a night of 64 GPUs adds up to the millisecond; tallies cost syncs under 1 %"


def run(scale: Scale) -> Figures:
    """Live through the night, then sync the same hosts with tallies and without."""
    hours = scale.pick(8.0, 0.2)
    with Scratch() as scratch, Database(scratch) as database:
        night, syncs = database.make("night"), database.make("syncs")
        for dsn in (night, syncs):
            migrate(dsn)
        found = asyncio.run(_live(night, hours))
        costs = asyncio.run(_sync(syncs, scale))
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
    )
    hours_of = {str(n): f"{ms / 3.6e6:.3f}" for n, ms in sorted(found["names"].items())}
    notes = (
        f"{found['offered'] / 3.6e6:.6f} GPU-hours offered = {found['named'] / 3.6e6:.6f} named; "
        f"{found['leased'] / 3.6e6:.6f} leased = {found['held'] / 3.6e6:.6f} in rows of jobs",
        f"by name: {hours_of}",
        f"{found['jobs']} jobs, {found['failures']} failures and stalls, {found['deaths']} deaths of the "
        "leader between reading and writing",
        f"a tally comes with one sync of twelve at 5 s, so tallies cost {share:+.2%} of syncs",
    )
    return Figures(name=name, lines=lines, notes=notes)


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
    await night.store.close()
    held = {s.key[0]: s.total_ms for s in by_job if s.key[0]}
    if held != {job: ms for job, ms in night.leased_ms.items() if ms}:
        raise RuntimeError("a job's time in the ledger is not that of its leases")
    return {
        "offered": night.sum_offered(), "named": whole.total_ms, "names": whole.ms,
        "leased": sum(night.leased_ms.values()), "held": sum(held.values()), "closing": closing,
        "jobs": night.jobs, "failures": night.failures, "deaths": night.deaths,
    }  # fmt: skip


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
