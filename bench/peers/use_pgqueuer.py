"""PgQueuer on PostgreSQL (asyncpg). `use_pgqueuer.py DSN jobs N` or `latency K`; prints JSON.

It keeps no results. Jobs are enqueued in batches of 1,000 and dequeued in batches of 100.
"""

import asyncio
import json
import sys
import time

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

BATCH = 100


async def make(dsn: str) -> tuple[PgQueuer, Queries]:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(dsn)))
    try:
        await queries.install()
    except asyncpg.exceptions.DuplicateObjectError:
        pass
    return PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn))), queries


async def run_jobs(dsn: str, jobs: int) -> dict[str, float]:
    worker, queries = await make(dsn)
    done = asyncio.Event()
    count = 0

    @worker.entrypoint("noop")
    async def noop(job: object) -> None:
        nonlocal count
        count += 1
        if count == jobs:
            done.set()

    began = time.monotonic()
    for first in range(0, jobs, 1000):
        size = min(1000, jobs - first)
        await queries.enqueue(["noop"] * size, [b"1"] * size, [0] * size)
    queued = time.monotonic()
    running = asyncio.create_task(worker.run(batch_size=BATCH))
    await done.wait()
    while sum(entry.count for entry in await queries.queue_size()):  # until every end is on record
        await asyncio.sleep(0.005)
    ended = time.monotonic()
    worker.shutdown.set()
    await asyncio.wait([running], timeout=10)
    return {"submit_seconds": queued - began, "run_seconds": ended - queued}


async def time_starts(dsn: str, samples: int) -> dict[str, list[float]]:
    worker, queries = await make(dsn)
    started: asyncio.Queue[float] = asyncio.Queue()

    @worker.entrypoint("noop")
    async def noop(job: object) -> None:
        started.put_nowait(time.monotonic())

    running = asyncio.create_task(worker.run(batch_size=1))
    await asyncio.sleep(1)
    found = []
    for _ in range(samples):
        began = time.monotonic()
        await queries.enqueue(["noop"], [b"1"], [0])
        found.append((await started.get() - began) * 1000)
        await asyncio.sleep(0.1)
    worker.shutdown.set()
    await asyncio.wait([running], timeout=10)
    return {"milliseconds": found}


if __name__ == "__main__":
    run = run_jobs if sys.argv[2] == "jobs" else time_starts
    print(json.dumps(asyncio.run(run(sys.argv[1], int(sys.argv[3])))))
