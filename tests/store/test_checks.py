"""What a row may not say, as PostgreSQL holds it."""

from __future__ import annotations

import psycopg
import pytest

from holdfast.store.postgres.store import PostgresStore
from tests.store.rig import Rig

WRONG = [
    "state = 'lost'", "outcome = 'lost'", "cause = 'lost'", "drain_cause = 'lost'",
    "state = 'waiting'", "state = 'reserved'", "state = 'draining'", "state = 'succeeded'",
    "wait_cause = 'array'", "wait_until = now()", "retry_at = now()", "queued_at = null",
    "drain_cause = 'preempted'", "drain_since = now()", "ended_at = now()",
    "state = 'succeeded', ended_at = now(), outcome = 'failed'",
    "array_id = 'a'", "array_index = 0", "epoch = -1", "memory_bytes = -1", "attempts = -1",
    "gpus = -1", "cpu_slots = -1", "tasks = 0", "priority = -1", "priority = 101", "no_progress = -1",
]  # fmt: skip


async def test_a_queued_job_cannot_be_made_into_nonsense(pg_emptied: str) -> None:
    store = PostgresStore(pg_emptied)
    await store.open()
    try:
        job_id = await Rig(store).submit()
    finally:
        await store.close()
    with psycopg.connect(pg_emptied, autocommit=True) as conn:
        for wrong in WRONG:
            with pytest.raises(psycopg.errors.CheckViolation):
                conn.execute(f"update jobs set {wrong} where id = %s".encode(), (job_id,))
