"""Submissions that place their job on PostgreSQL: what a room that is as it was costs, and two
controllers that find the same room."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from holdfast.store.postgres.connection.session import Tx
from holdfast.store.postgres.store import PostgresStore
from tests.store.conformance.takes import place_one, taken
from tests.store.rig import OK, Rig

WAIT_SECONDS = 30.0
PLACING = ("where host_id = $1 for no key update) b", "to_jsonb(r) = $", "jsonb_to_recordset($")
"""Words of begin_placing, of place_job, and of what writes a job on either road."""
BLOCKED = b"select count(*) from pg_locks where not granted"


async def end(rig: Rig, found: Any) -> None:
    """Run the job that was placed to its end."""
    key = found[1].offers[0].task.key
    await rig.sync(live=[key], started=[key])
    await rig.sync(ended=[(key, OK)])


async def test_a_room_that_is_as_it_was_costs_no_second_transaction(rigs: tuple[Rig, Rig]) -> None:
    rig = rigs[0]
    await place_one(rig, slots=2)
    assert isinstance(rig.store, PostgresStore)
    transact = rig.store.session.transact

    async def refuse(*_: object, **__: object) -> object:
        raise AssertionError("the room was read again")

    rig.store.session.transact = refuse  # type: ignore[method-assign,assignment]  # watched, for this instance alone
    first = await rig.submit_to("h1", "first")
    assert taken(first[1]) == ["first"]
    with pytest.raises(AssertionError, match="read again"):
        await rig.submit_to("h1", "second")
    rig.store.session.transact = transact  # type: ignore[method-assign]  # as it was
    second = await rig.submit_to("h1", "second")
    assert taken(second[1]) == ["second"], "beside the first, on what was read"
    await end(rig, second)
    rig.store.session.transact = refuse  # type: ignore[method-assign,assignment]  # as above
    assert taken((await rig.submit_to("h1", "third"))[1]) == ["third"]


async def test_of_two_submissions_that_find_the_same_room_one_is_placed_on_one_slot(
    rigs: tuple[Rig, Rig], pg_emptied: str
) -> None:
    await place_one(rigs[0], slots=1)
    rigs[1].incarnations = rigs[0].incarnations
    await end(rigs[1], await rigs[1].submit_to("h1", "warms-up"))
    async with await psycopg.AsyncConnection.connect(pg_emptied) as conn:
        await conn.execute(b"select from heartbeats for no key update")
        calls = [
            asyncio.ensure_future(rig.submit_to("h1", f"from-{number}"))
            for number, rig in enumerate(rigs)
        ]
        async with asyncio.timeout(WAIT_SECONDS):
            while await ask(pg_emptied) < 2:
                assert not any(call.done() for call in calls), "it did not wait for the host's lock"
                await asyncio.sleep(0.01)
        await conn.commit()
    found = await asyncio.wait_for(asyncio.gather(*calls), WAIT_SECONDS)
    assert sorted(len(taken(answer)) for _, answer in found) == [0, 1]
    states = {name: (await rigs[0].job(name)).state for name in ("from-0", "from-1")}
    assert sorted(states.values()) == ["queued", "reserved"]


async def test_a_new_connection_has_planned_what_places_a_job(rigs: tuple[Rig, Rig]) -> None:
    store = rigs[0].store
    assert isinstance(store, PostgresStore)

    async def count(tx: Tx) -> dict[str, int]:
        rows = await (
            await tx.conn.execute(b"select statement from pg_prepared_statements")
        ).fetchall()
        known = [row["statement"] for row in rows]
        return {word: sum(word in one for one in known) for word in PLACING}

    assert await store.session.single(count) == dict.fromkeys(PLACING, 1)


async def ask(dsn: str) -> int:
    """How many sessions wait for a lock."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        row = await (await conn.execute(BLOCKED)).fetchone()
        assert row is not None
        return int(row[0])
