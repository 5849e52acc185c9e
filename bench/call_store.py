"""Calls through the real store: simulated executors that answer at once."""

from __future__ import annotations

import asyncio
import time

import psycopg

from holdfast.core.calls.values import FunctionSpec, find_family
from holdfast.core.ids import TaskKey
from holdfast.store.postgres.calls.values import ExecutorTurn
from holdfast.store.postgres.connection.migrate import migrate
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.calls import BatchEnds, CallEnd, ExecutorReport

SPEC = FunctionSpec(function="bench:double")
QUEUE = "bench"
PAGE = 5000
_TASKS = """
insert into tasks (job_id, rank, epoch, attempt, state, queue, gpus, cpu_slots, memory_bytes, host_id, incarnation,
                   lease_ttl_seconds, lease_until, offered_at, started_at)
select 'bench-' || n, 0, 1, 1, 'running', 'bench', 0, 1, 0, 'h1', 'inc-00001', 60, now() + interval '1 day', now(), now()
from generate_series(0, %d) n on conflict do nothing
"""


def prepare(dsn: str, executors: int) -> None:
    """Make the schema, and the leases of as many executors."""
    migrate(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute((_TASKS % (executors - 1)).encode())


def measure_calls(dsn: str, calls: int, executors: int, batch: int, number: int) -> float:
    """Return seconds of the submission, of the exchanges and of reading the results, together."""
    return asyncio.run(_measure(dsn, calls, executors, batch, f"bench-set-{number:08d}"))


async def _measure(dsn: str, calls: int, executors: int, batch: int, set_id: str) -> float:
    store = PostgresStore(dsn)
    await store.open()
    try:
        began = time.monotonic()
        for first in range(0, calls, PAGE):
            args = [f"[{i}]" for i in range(first, min(first + PAGE, calls))]
            if first == 0:
                await store.calls.create_set(set_id, SPEC, QUEUE, count=calls, args=args)
            else:
                await store.calls.append_calls(set_id, first, args)
        await asyncio.gather(*(_execute(store, n, batch) for n in range(executors)))
        read = 0
        while found := await store.calls.read_results(set_id, first=read, limit=PAGE):
            read += len(found)
        seconds = time.monotonic() - began
        view = await store.calls.read_set(set_id)
    finally:
        await store.close()
    if (view.succeeded, read, view.state) != (calls, calls, "ended"):
        raise RuntimeError(f"{view.succeeded} succeeded and {read} were read of {calls}")
    return seconds


async def _execute(store: PostgresStore, n: int, size: int) -> None:
    """Be an executor until nothing is left: each exchange has the ends of the batch before."""
    family, key = find_family(SPEC, QUEUE).name, TaskKey(f"bench-{n}", 0, 1)
    ends: list[BatchEnds] = []
    while True:
        report = ExecutorReport(key=key, ends=ends, want=size)
        turn = ExecutorTurn(host_id="h1", incarnation="inc-00001", family=family, report=report)
        (answer,) = await store.calls.exchange([turn])
        ends = [
            BatchEnds(
                b.id, [CallEnd(i, False, 0.0, str(2 * c.index)) for i, c in enumerate(b.calls)]
            )
            for b in answer.batches
        ]
        if not answer.batches:
            return
