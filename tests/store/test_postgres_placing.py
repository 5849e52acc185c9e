"""Takes on PostgreSQL: two controllers that find the same room, and two takes at the same time."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from holdfast.store.postgres.connection.session import Tx
from holdfast.store.postgres.store import PostgresStore
from tests.store.conformance.takes import taken
from tests.store.postgres.test_takes import place_one
from tests.store.rig import Rig
from tests.store.test_postgres_takes import NEXT_BATCH, wait_for_locks
from tests.waits import within

WAIT_SECONDS = 30.0
PLACING = ("jsonb_to_recordset($", "from heartbeats")
"""Words of the statement that writes a job, and of those that read and lock its host."""
BLOCKED = b"select count(*) from pg_locks where not granted"


async def test_of_two_submissions_that_find_the_same_room_one_is_placed_on_one_slot(
    rigs: tuple[Rig, Rig], pg_emptied: str
) -> None:
    await place_one(rigs[0], slots=1)
    rigs[1].incarnations = rigs[0].incarnations
    async with await psycopg.AsyncConnection.connect(pg_emptied) as conn:
        await conn.execute(b"select from heartbeats for no key update")
        calls = [
            asyncio.ensure_future(rig.submit_to("h1", f"from-{number}"))
            for number, rig in enumerate(rigs)
        ]
        async with within(WAIT_SECONDS):
            while await ask(pg_emptied) < 2:
                assert not any(call.done() for call in calls), "it did not wait for the host's lock"
                await asyncio.sleep(0.01)
        await conn.commit()
    found = await asyncio.wait_for(asyncio.gather(*calls), WAIT_SECONDS)
    assert sorted(len(taken(answer)) for _, answer in found) == [0, 1]
    states = {name: (await rigs[0].job(name)).state for name in ("from-0", "from-1")}
    assert sorted(states.values()) == ["queued", "reserved"]


@pytest.mark.parametrize("warm", [False, True])
async def test_a_warm_store_has_planned_what_submits_a_job_to_a_host(
    pg_emptied: str, warm: bool
) -> None:
    async def count(tx: Tx) -> dict[str, int]:
        rows = await (
            await tx.conn.execute(b"select statement from pg_prepared_statements")
        ).fetchall()
        known = [row["statement"] for row in rows]
        return {word: any(word in one for one in known) for word in PLACING}

    store = PostgresStore(pg_emptied, max_connections=1, warm=warm)
    await store.open()
    try:
        assert await store.session.transact_hot(count) == dict.fromkeys(PLACING, warm)
    finally:
        await store.close()


async def test_of_two_takes_at_the_same_time_the_later_finds_less(
    rigs: tuple[Rig, Rig], pg_emptied: str
) -> None:
    """It leaves alone what the first holds, waits for nothing, and its host is not settled: it has
    room, and jobs are left that it may take with its next sync."""
    rig = rigs[0]
    for name in ("h1", "h2"):
        await rig.host(name, slots=2)
    for number in range(5):
        await rig.submit(f"job-{number}")
    async with await psycopg.AsyncConnection.connect(pg_emptied) as conn:
        await conn.execute(NEXT_BATCH)
        first = asyncio.create_task(rig.sync("h1", takes=True))
        await wait_for_locks(pg_emptied, 1, first)
        later = await asyncio.wait_for(rig.sync("h2", takes=True), WAIT_SECONDS)
        await conn.rollback()
    assert (taken(later), later.settled) == ([], False)
    assert (taken(await first), (await first).settled) == (["job-0", "job-1"], True)
    assert taken(await rig.sync("h2", takes=True)) == ["job-2", "job-3"]


async def ask(dsn: str) -> int:
    """How many sessions wait for a lock."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        row = await (await conn.execute(BLOCKED)).fetchone()
        assert row is not None
        return int(row[0])
