"""The cost of telling a queued job why it waits, when it should start and what would let it start now, with
100,000 jobs in the queue: as the controller does it, without HTTP."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import msgspec
from tests.simulated.blobs import MemoryBlobs

from bench.figures import Figures, Line, percentile, spread
from bench.mixed_day import GPUS, SIZES
from bench.scale import Scale, say
from bench.system import Database, Scratch
from holdfast.controller.runtime.context import Controller
from holdfast.controller.why.explain import explain
from holdfast.controller.why.foreseen import foresee_start
from holdfast.controller.why.reads import find_circumstances
from holdfast.core.gpus import Gpu
from holdfast.core.placement.plan import plan_admission
from holdfast.core.spec import JobSpec
from holdfast.moves.values import HostSync, NewJob
from holdfast.store.postgres.connection.migrate import migrate
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.agent import HostFacts

name = "why"
budget = "100,000 queued jobs: place, expected start and what would start it now in <= 200 ms"
BUDGET_MS = 200.0
QUEUES = ("train", "batch", "urgent")
SHARES = {"red": 0.5, "blue": 0.25, "green": 0.25}


def run(scale: Scale) -> Figures:
    """Milliseconds by the clock and of a processor, of jobs at the head, in the middle and at the end."""
    jobs, hosts = scale.pick(100_000, 200), scale.pick(64, 2)
    lines: list[Line] = []
    notes: list[str] = []
    for shared in (False, True):
        with Scratch() as scratch, Database(scratch) as database:
            dsn = database.make("why")
            migrate(dsn)
            found, said = asyncio.run(_ask(dsn, hosts, jobs, shared, scale))
        where = f"{jobs:,} queued on {hosts} hosts" + (", shares" if shared else "")
        notes += [f"{where}: {each}" for each in said]
        for which, times in found.items():
            wall = [wall for wall, _ in times]
            worst = percentile(wall, 90)
            lines.append(
                Line(
                    what=f"why of the {which}, {where}",
                    unit="ms",
                    value=spread(wall),
                    limit_name="CPU of the controller",
                    limit=spread([cpu for _, cpu in times]),
                    budget="p90 <= 200 ms",
                    met=worst <= BUDGET_MS,
                )
            )
    return Figures(name=name, lines=tuple(lines), notes=tuple(notes))


async def _ask(
    dsn: str, hosts: int, jobs: int, shared: bool, scale: Scale
) -> tuple[dict[str, list[tuple[float, float]]], list[str]]:
    """Return (milliseconds, of a processor) of each question, and a line that was told of each job."""
    store = PostgresStore(dsn)
    await store.open()
    await _fill(store, hosts, jobs, shared)
    snap = await store.admission.read_line(500)
    line = [job.job_id for job in snap.candidates]
    asked = {
        "first job": line[0],
        "job behind 30": line[min(30, len(line) - 1)],
        "last of the line": line[-1],
        "last job": f"q{jobs - 1:06d}",
    }
    found: dict[str, list[tuple[float, float]]] = {}
    said = []
    for which, job_id in asked.items():
        for _ in range(scale.pick(7, 2)):
            await _hear(store, hosts)
            controller = Controller(
                store, blobs=MemoryBlobs()
            )  # a new one remembers no outlook: the dearest case
            began, own = time.perf_counter(), time.process_time()
            job = await store.jobs.get_job(job_id)
            (circumstances,) = await find_circumstances(controller, [job])
            foreseen = await foresee_start(controller, job)
            told = explain(msgspec.structs.replace(circumstances, foreseen=foreseen))
            wall = time.perf_counter() - began
            used = time.process_time() - own
            found.setdefault(which, []).append((wall * 1000, used * 1000))
        said.append(f"{which}: " + "; ".join(each.message for each in told.lines)[:300])
        say(f"  {said[-1]}")
    await store.close()
    return found, said


async def _fill(store: PostgresStore, hosts: int, jobs: int, shared: bool) -> None:
    """Fill the hosts with jobs that run, and the queues with jobs that wait."""
    chance = random.Random(7)
    for queue in QUEUES:
        await store.settings.put_queue(queue, {})
    if shared:
        for project, part in SHARES.items():
            share = int(part * hosts * GPUS)
            await store.settings.put_project(project, {"share_gpus": share})
    for n in range(hosts):
        facts = HostFacts(
            name=f"h{n}",
            cpu_slots=64,
            gpus=[Gpu(index=i) for i in range(GPUS)],
            memory_bytes=1 << 40,
        )
        key = f"h{n}".encode().ljust(32, b".")
        await store.hosts.register_host(f"h{n}", key, "incarnation-1", facts)
    await store.jobs.submit_jobs(_make(chance, "r", hosts * GPUS))
    await _start(store)
    for first in range(0, jobs, 5000):
        await store.jobs.submit_jobs(_make(chance, "q", min(5000, jobs - first), first))


async def _hear(store: PostgresStore, hosts: int) -> None:
    """Let every host say that it lives."""
    syncs = [HostSync(host_id=f"h{n}", incarnation="incarnation-1") for n in range(hosts)]
    await store.leases.sync_hosts(syncs)


def _make(chance: random.Random, mark: str, count: int, first: int = 0) -> Sequence[NewJob]:
    found = []
    for n in range(first, first + count):
        (tasks, gpus, _) = chance.choices(SIZES, [share for *_, share in SIZES])[0]
        spec = JobSpec(
            argv=("train",),
            name=f"n{chance.randrange(20)}",
            tasks=tasks,
            gpus=gpus,
            project=chance.choice(tuple(SHARES)),
            priority=80 if chance.random() < 0.1 else 50,
            time_limit_seconds=chance.choice((600.0, 3600.0, 14_400.0)),
        )
        found.append(NewJob(id=f"{mark}{n:06d}", spec=spec, queue=chance.choice(QUEUES)))
    return found


async def _start(store: PostgresStore) -> None:
    """Place what fits, and let it run."""
    snap = await store.admission.read_admission(500)
    plan = plan_admission(snap.candidates, snap.hosts, snap.headroom, snap.quotas)
    ttls = {each.job_id: 3600.0 for each in plan.placements}
    await store.leases.reserve_and_offer(plan.placements, ttls, ())
    for _ in ("claim", "start"):
        for host in {str(p.host_id) for each in plan.placements for p in each.tasks}:
            sync = HostSync(host_id=host, incarnation="incarnation-1")
            (found,) = await store.leases.sync_hosts([sync])
            claimed = tuple((c.key, 0 if c.key.rank else 4711) for c in found.claims)
            keys = tuple(offer.task.key for offer in found.offers)
            if claimed:
                again = HostSync(host_id=host, incarnation="incarnation-1", claimed=claimed)
                await store.leases.sync_hosts([again])
            if keys:
                again = HostSync(host_id=host, incarnation="incarnation-1", live=keys, started=keys)
                await store.leases.sync_hosts([again])
