"""Admission of gangs: many jobs of mixed sizes, and one of a thousand ranks from its queue to its
last launch order."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence

from tests.simulated.blobs import MemoryBlobs

from bench.figures import Figures, Line, spread
from bench.limits.raw_gangs import measure_raw_gangs
from bench.scale import Scale, alternate, say
from bench.system import Database, Scratch

name = "gangs"
budget = "admitted >= 0.3 of the bare rows"

QUEUES = 10
PROJECTS = 100
PATTERN = (1,) * 35 + (5,) * 11 + (20,) * 4
"""Sizes of jobs in 35:11:4."""
SUBMIT = 1000


def choose_sizes(jobs: int) -> list[int]:
    """As many sizes as jobs, in the pattern's proportion at any length."""
    return [
        PATTERN[n * 7 % len(PATTERN)] for n in range(jobs)
    ]  # 7 and 50 share no factor: all of them, mixed


class Cluster:
    """A store on a database of its own, the admission loop over it, and hosts that are rows."""

    def __init__(self, dsn: str) -> None:
        from holdfast.controller.runtime.context import Controller
        from holdfast.store.postgres.connection.migrate import migrate
        from holdfast.store.postgres.store import PostgresStore

        migrate(dsn)
        self.store = PostgresStore(dsn)
        self.controller = Controller(self.store, blobs=MemoryBlobs())
        self.hosts: list[str] = []

    async def add_hosts(self, count: int, slots: int) -> None:
        """Hosts as their registration leaves them. They are not called silent for as long as this
        takes."""
        from holdfast.wire.agent import HostFacts

        await self.store.settings.write_cluster_settings(
            {"sync_interval_seconds": 60.0, "dead_host_seconds": 3600.0}
        )
        for n in range(count):
            host_id = f"host-{n:05d}"
            facts = HostFacts(
                name=host_id,
                cpu_slots=slots,
                memory_bytes=1 << 40,
                address=f"10.0.{n // 250}.{n % 250}",
            )
            await self.store.hosts.register_host(
                host_id, host_id.encode().ljust(32, b"."), "incarnation-1", facts
            )
            self.hosts.append(host_id)

    async def share(self, slots: int) -> None:
        """Give each project an equal share of all slots."""
        for n in range(PROJECTS):
            changes = {"share_cpu_slots": slots // PROJECTS}
            await self.store.settings.put_project(f"project-{n}", changes)

    async def submit(self, sizes: Sequence[int], projects: int = 1) -> None:
        """Queue jobs of these sizes over all lanes and so many projects."""
        from holdfast.core.spec import JobSpec
        from holdfast.moves.values import NewJob

        for n in range(QUEUES):
            await self.store.settings.put_queue(f"lane-{n}", {})
        for start in range(0, len(sizes), SUBMIT):
            jobs = [
                NewJob(
                    id=f"job-{start + k:010d}",
                    spec=JobSpec(
                        argv=("true",), tasks=size, project=f"project-{(start + k) % projects}"
                    ),
                    queue=f"lane-{(start + k) % QUEUES}",
                )
                for k, size in enumerate(sizes[start : start + SUBMIT])
            ]
            await self.store.jobs.submit_jobs(jobs)

    async def admit(self, jobs: int) -> float:
        """Seconds of the loop until all jobs are reserved."""
        from holdfast.controller.loops.admit import AdmitLoop
        from holdfast.controller.server import COLLECT_AFTER

        gc.freeze()  # as a server does that has started
        gc.set_threshold(COLLECT_AFTER)
        loop, seconds, started = AdmitLoop(self.controller), 0.0, 0
        while started < jobs:
            began = time.monotonic()
            found = await loop.run_once()
            seconds += time.monotonic() - began
            if not found.get("started"):
                raise RuntimeError(f"{started} of {jobs} jobs were reserved, and no more")
            started += int(found["started"])
        return seconds

    async def start_gang(self) -> float:
        """Seconds from the hosts' first look to the last answer with launch orders, each host's
        sync by itself as the server takes them."""
        from holdfast.controller.runtime.hosts.batch import SyncBatcher
        from holdfast.controller.runtime.hosts.orders import make_orders
        from holdfast.moves.values import HostSync
        from holdfast.wire.agent import SyncAnswer, encode

        own = self.controller
        batcher = SyncBatcher(self.store, own.settings, own.metrics, own.outages, own.doubts)
        began = time.monotonic()
        asked = await asyncio.gather(
            *(batcher.submit(HostSync(host_id=h, incarnation="incarnation-1")) for h in self.hosts)
        )
        claims = {
            a.host_id: tuple((row.key, 29_500 if row.key.rank == 0 else 0) for row in a.claims)
            for a in asked
        }
        told = await asyncio.gather(
            *(
                batcher.submit(HostSync(host_id=h, incarnation="incarnation-1", claimed=claims[h]))
                for h in self.hosts
            )
        )
        late = [a.host_id for a in told if len(a.offers) < len(claims[a.host_id])]
        again = await asyncio.gather(
            *(
                batcher.submit(HostSync(host_id=h, incarnation="incarnation-1", claimed=claims[h]))
                for h in late
            )
        )
        settings = await self.controller.settings.current()
        layouts, offered = self.controller.layouts, 0
        for a in (*asked, *told, *again):
            orders = await make_orders(self.store, a.offers, settings, layouts)
            offered += len(orders)
            encode(SyncAnswer(launch=orders, gangs=layouts.list_gangs(a.offers)))
        seconds = time.monotonic() - began
        # A gang whose ranks share one host has no claims: the first answer starts it.
        ranks = sum(map(len, claims.values())) + sum(len(a.offers) for a in asked)
        if offered < ranks or not ranks:
            raise RuntimeError(f"{offered} launch orders for {ranks} ranks")
        return seconds


def run(scale: Scale) -> Figures:
    """Limit and system take turns, each round on a database of its own."""
    jobs, hosts, slots = scale.pick(50_000, 300), scale.pick(200, 10), scale.pick(1000, 120)
    ranks, wide = scale.pick(1000, 40), scale.pick(125, 5)
    sizes = choose_sizes(jobs)
    numbers = iter(range(1000))
    fair: list[float] = []
    reserve: list[float] = []
    start: list[float] = []
    spread_out: list[float] = []

    async def mixed(dsn: str, *, shared: bool = False) -> float:
        cluster = Cluster(dsn)
        await cluster.store.open()
        try:
            await cluster.add_hosts(hosts, slots)
            if shared:
                await cluster.share(hosts * slots)
            await cluster.submit(sizes, PROJECTS if shared else 1)
            return jobs / await cluster.admit(jobs)
        finally:
            await cluster.store.close()

    async def large(dsn: str, hosts: int) -> tuple[float, float]:
        cluster = Cluster(dsn)
        await cluster.store.open()
        try:
            await cluster.add_hosts(hosts, ranks // hosts)
            await cluster.submit([ranks])
            return await cluster.admit(1) * 1000, await cluster.start_gang() * 1000
        finally:
            await cluster.store.close()

    with Scratch() as scratch, Database(scratch) as database:

        def measure() -> float:
            found = asyncio.run(mixed(database.make(f"mixed-{next(numbers)}")))
            fair.append(asyncio.run(mixed(database.make(f"fair-{next(numbers)}"), shared=True)))
            took = asyncio.run(large(database.make(f"large-{next(numbers)}"), wide))
            reserve.append(took[0])
            start.append(took[1])
            spread_out.append(asyncio.run(large(database.make(f"large-{next(numbers)}"), ranks))[1])
            say(
                f"  with shares of {PROJECTS} projects {fair[-1]:,.0f} jobs/s; a gang of {ranks}: reserved in {reserve[-1]:.0f} ms, claimed and told in "
                f"{start[-1]:.0f} ms; "
                f"with a host for each rank in {spread_out[-1]:.0f} ms"
            )
            return found

        raw = database.make("raw")
        limits, found = alternate(
            scale.pick(3, 1),
            lambda: measure_raw_gangs(raw, sizes, hosts),
            measure,
            ("raw", "admitted"),
            "jobs/s",
        )
    lines = (
        Line(
            what=f"{jobs:,} queued in {QUEUES} queues, sizes 1/5/20 in 35:11:4",
            unit="jobs/s",
            value=spread(found),
            limit_name="bare rows",
            limit=spread(limits),
            budget=">= 0.3 x",
            met=spread(found).median >= 0.3 * spread(limits).median,
        ),
        Line(
            what=f"{jobs:,} queued of {PROJECTS} projects with shares, sizes as above",
            unit="jobs/s",
            value=spread(fair),
            limit_name="bare rows",
            limit=spread(limits),
            budget=">= 0.3 x",
            met=spread(fair).median >= 0.3 * spread(limits).median,
        ),
        Line(what=f"reserve a gang of {ranks:,} on {wide} hosts", unit="ms", value=spread(reserve)),
        Line(
            what=f"claim and launch orders of {ranks:,} ranks, {wide} syncs",
            unit="ms",
            value=spread(start),
        ),
        Line(
            what=f"claim and launch orders of {ranks:,} ranks, a host each",
            unit="ms",
            value=spread(spread_out),
        ),
    )
    note = "Store and admission loop in one process with PostgreSQL beside it; hosts are rows, no agent and no HTTP."
    return Figures(name=name, lines=lines, notes=(note,))
