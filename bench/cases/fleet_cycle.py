"""One cycle of a pool of 10,000 hosts behind which 100,000 jobs are queued."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import psycopg
from tests.simulated.blobs import MemoryBlobs

from bench.figures import Figures, Line, spread
from bench.scale import Scale, alternate, say
from bench.system import Database, Scratch
from holdfast.core.fleet.instances import CreateOrder, Machine, MachineState, Offer, Quote
from holdfast.core.fleet.pools import PoolSpec

name = "fleet-cycle"
budget = (
    "none promised; the ratio says what records, comparison and decision cost beside the reading"
)

POOL = "bench"
OFFER = Offer(name="one", cpu_slots=8, usd_per_hour=1.0)
_FILL = """
insert into hosts (id, name, pool, state, queues, labels, cpu_slots, memory_bytes, address, version, probe,
                   registered_at, state_at)
select 'host-' || lpad(n::text, 6, '0'), 'host-' || n, %(pool)s, 'active', '{}', '{}', 8, 1::bigint << 40, '10.0.0.1', '1',
       'real', clock_timestamp(), clock_timestamp()
from generate_series(1, %(hosts)s) n;
insert into heartbeats (host_id, incarnation, heartbeat_at) select id, 'incarnation-1', clock_timestamp() from hosts;
insert into instances (host_id, pool, offer, usd_per_hour, state, ref, intended_at, asked_at, made_at, active_at)
select id, %(pool)s, 'one', 1.0, 'made', 'm-' || id, clock_timestamp(), clock_timestamp(), clock_timestamp(), clock_timestamp()
from hosts
"""
# As much as the cycle reads at the least: each machine on record with its host and its last call, what is leased there,
# and the queue by shape.
_READ = (
    "select i.*, h.name, h.state, b.heartbeat_at, u.leases from instances i join hosts h on h.id = i.host_id "
    "join heartbeats b on b.host_id = i.host_id left join (select host_id, count(*) as leases from tasks "
    "where state in ('reserved', 'running', 'preempting') group by host_id) u on u.host_id = i.host_id "
    "where i.state <> 'gone'",
    "select queue, tasks, gpus, cpu_slots, memory_bytes, count(*), min(queued_at) from jobs where state = 'queued' "
    "group by queue, tasks, gpus, cpu_slots, memory_bytes",
)


class Listed:
    """A provider that lists as many machines as there are on record, and does nothing."""

    kind = "listed"
    tells_prices = False

    def __init__(self, hosts: int) -> None:
        ids = [f"host-{n:06d}" for n in range(1, hosts + 1)]
        self._machines = tuple(
            Machine(ref=f"m-{i}", intent=i, pool=POOL, name=i, state=MachineState.RUNNING)
            for i in ids
        )

    async def quote(self, offers: tuple[Offer, ...]) -> tuple[Quote, ...]:
        return tuple(Quote(offer=offer.name) for offer in offers)

    async def create(self, order: CreateOrder) -> Machine:
        raise RuntimeError("the pool is at its max: nothing is made")

    async def list_machines(self) -> tuple[Machine, ...]:
        return self._machines

    async def get_machine(self, ref: str) -> Machine | None:
        raise RuntimeError("no cycle looks at one machine")

    async def terminate(self, ref: str) -> None:
        raise RuntimeError("nothing is ended")

    async def close(self) -> None:
        pass


def fill(dsn: str, hosts: int, jobs: int) -> None:
    """Write hosts that serve, and queued jobs, as rows."""
    from bench.cases.depth import copy_queued
    from holdfast.store.postgres.connection.migrate import migrate

    migrate(dsn)
    asyncio.run(_submit_one(dsn))
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in _FILL.split(";"):
            connection.execute(statement.encode(), {"pool": POOL, "hosts": hosts})
        copy_queued(connection, 0, jobs - 1)
        connection.execute(b"vacuum (analyze)")


async def _submit_one(dsn: str) -> None:
    from holdfast.core.spec import JobSpec
    from holdfast.moves.values import NewJob
    from holdfast.store.postgres.store import PostgresStore

    store = PostgresStore(dsn)
    await store.open()
    try:
        await store.settings.put_queue("lane", {})
        spec = JobSpec(argv=("true",))
        await store.jobs.submit_jobs([NewJob(id="pattern", spec=spec, queue="lane")])
    finally:
        await store.close()


def read_bare(dsn: str) -> float:
    """Milliseconds of the statements alone, to the last row in Python."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        began = time.monotonic()
        for statement in _READ:
            connection.execute(statement.encode()).fetchall()
        return (time.monotonic() - began) * 1000


async def measure(dsn: str, hosts: int) -> tuple[float, float]:
    """Milliseconds of a cycle with its listing, and of one that a hint began, without."""
    from holdfast.controller.fleet.cycle import PoolCycles
    from holdfast.controller.runtime.context import Controller
    from holdfast.providers.interface import Provider
    from holdfast.store.postgres.store import PostgresStore

    provider = Listed(hosts)

    def open_listed(kind: str, config: Mapping[str, Any], installation: str) -> Provider:
        return provider

    store = PostgresStore(dsn)
    await store.open()
    try:
        controller = Controller(store, open_provider=open_listed, blobs=MemoryBlobs())
        controller.leadership.begin(await store.now())
        spec = PoolSpec(name=POOL, provider="local", offers=(OFFER,), max=hosts)
        pool = await store.fleet.put_pool(spec)
        cycles = PoolCycles(controller, POOL)
        await cycles.run(pool)  # plans are kept, caches are warm
        took = []
        for listing in (True, False):
            began = time.monotonic()
            summary = await cycles.run(pool, listing=listing)
            took.append((time.monotonic() - began) * 1000)
            if summary.error or summary.status.active_hosts != hosts:
                raise RuntimeError(f"the cycle did not see the pool: {summary}")
        await cycles.close()
        return took[0], took[1]
    finally:
        await store.close()


def run(scale: Scale) -> Figures:
    """The statements and the cycle take turns on one database."""
    hosts, jobs = scale.pick(10_000, 50), scale.pick(100_000, 500)
    hinted: list[float] = []
    with Scratch() as scratch, Database(scratch) as database:
        dsn = database.make("fleet")
        say(f"  filling {hosts:,} hosts and {jobs:,} jobs")
        fill(dsn, hosts, jobs)

        def cycle() -> float:
            whole, short = asyncio.run(measure(dsn, hosts))
            hinted.append(short)
            return whole

        limits, found = alternate(
            scale.rounds, lambda: read_bare(dsn), cycle, ("bare SQL", "cycle"), "ms"
        )
    what = f"{hosts:,} hosts, {jobs:,} queued jobs"
    bare = spread(limits)
    lines = (
        Line(
            what=f"cycle, {what}", unit="ms", value=spread(found), limit_name="bare SQL", limit=bare
        ),
        Line(
            what=f"cycle without listing, {what}",
            unit="ms",
            value=spread(hinted),
            limit_name="bare SQL",
            limit=bare,
        ),
    )
    note = "Cycle, store and provider in one process with PostgreSQL beside it; the provider's listing is in memory."
    return Figures(name=name, lines=lines, notes=(note,))
