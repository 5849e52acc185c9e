"""Procrastinate on PostgreSQL. `use_procrastinate.py DSN jobs N` or `latency K`; prints JSON.

It keeps no results. Jobs are deferred in batches of 1,000; one worker runs 100 at once.
"""

import asyncio
import json
import logging
import sys
import time

import procrastinate

logging.disable(logging.WARNING)


async def make(dsn: str) -> procrastinate.App:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))
    await app.open_async()
    if not await app.check_connection_async():
        await app.schema_manager.apply_schema_async()
    return app


async def run_jobs(dsn: str, jobs: int) -> dict[str, float]:
    app = await make(dsn)
    count = 0

    @app.task(name="noop")
    async def noop(number: int) -> None:
        nonlocal count
        count += 1

    began = time.monotonic()
    for first in range(0, jobs, 1000):
        await noop.batch_defer_async(
            *({"number": n} for n in range(first, min(first + 1000, jobs)))
        )
    queued = time.monotonic()
    await app.run_worker_async(wait=False, concurrency=100, install_signal_handlers=False)
    ended = time.monotonic()
    assert count == jobs, count
    await app.close_async()
    return {"submit_seconds": queued - began, "run_seconds": ended - queued}


async def time_starts(dsn: str, samples: int) -> dict[str, list[float]]:
    app = await make(dsn)
    started: asyncio.Queue[float] = asyncio.Queue()

    @app.task(name="noop")
    async def noop() -> None:
        started.put_nowait(time.monotonic())

    running = asyncio.create_task(
        app.run_worker_async(concurrency=10, install_signal_handlers=False)
    )
    await asyncio.sleep(1)
    found = []
    for _ in range(samples):
        began = time.monotonic()
        await noop.defer_async()
        found.append((await started.get() - began) * 1000)
        await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.wait([running], timeout=10)
    await app.close_async()
    return {"milliseconds": found}


if __name__ == "__main__":
    run = run_jobs if sys.argv[2] == "jobs" else time_starts
    print(json.dumps(asyncio.run(run(sys.argv[1], int(sys.argv[3])))))
