"""Takes on PostgreSQL: a room that is as it was when a job is submitted, two controllers that find the
same room, and two takes at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast.core.spec import JobSpec
from holdfast.errors import Unavailable
from holdfast.moves.values import Foretell, HostSynced, NewJob
from holdfast.store.postgres.connection.session import Tx
from holdfast.store.postgres.store import PostgresStore
from tests.store.conformance.takes import place_one, taken
from tests.store.rig import OK, Rig
from tests.store.test_postgres_takes import NEXT_BATCH, wait_for_locks
from tests.waits import within

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
    session = rig.store.leases.session
    transact = session.transact

    async def refuse(*_: object, **__: object) -> object:
        raise AssertionError("the room was read again")

    session.transact = refuse  # type: ignore[method-assign,assignment]  # watched, for this instance alone
    first = await rig.submit_to("h1", "first")
    assert taken(first[1]) == ["first"]
    with pytest.raises(AssertionError, match="read again"):
        await rig.submit_to("h1", "second")
    session.transact = transact  # type: ignore[method-assign]  # as it was
    second = await rig.submit_to("h1", "second")
    assert taken(second[1]) == ["second"], "beside the first, on what was read"
    await end(rig, second)
    session.transact = refuse  # type: ignore[method-assign,assignment]  # as above
    assert taken((await rig.submit_to("h1", "third"))[1]) == ["third"]


async def test_what_is_as_it_was_twice_is_foretold(rigs: tuple[Rig, Rig]) -> None:
    """FORETELL-1: what is foretold is decided, and told in no other way."""
    rig = rigs[0]
    await place_one(rig, slots=2)
    said: list[object] = []

    def foretell(answer: HostSynced) -> Callable[[bool], None]:
        said.append(("foretold", taken(answer)))
        return lambda written: said.append(written)

    async def tell(answer: HostSynced) -> None:
        said.append(("told", taken(answer)))

    async def submit(name: str, listen: Foretell = foretell) -> tuple[Any, list[object]]:
        job = NewJob(id=name, spec=JobSpec(argv=("true",)), queue="cpu")
        taker, terms = rig.make_sync("h1", takes=True), await rig.terms()
        found = await rig.store.leases.submit_to_host(
            job, taker, terms, tell=tell, foretell=listen, now=rig.now
        )
        assert found is not None
        heard, said[:] = list(said), []
        return found, heard

    found, heard = await submit("first")
    assert heard == [("told", ["first"])], "one guess may be wrong, and a host would call in vain"
    await end(rig, found)
    found, heard = await submit("second")
    assert heard == [("foretold", ["second"]), True]
    _, heard = await submit("third")
    assert heard == [("foretold", ["third"]), False, ("told", ["third"])], "beside the second"
    await end(rig, found)
    found, heard = await submit("fourth")
    assert heard == [("told", ["fourth"])], "the last guess was wrong"


async def test_a_host_that_does_not_wait_is_told_what_it_was_not_foretold(
    rigs: tuple[Rig, Rig],
) -> None:
    rig = rigs[0]
    await place_one(rig, slots=1)
    await end(rig, await rig.submit_to("h1", "first"))
    told: list[list[str]] = []

    async def tell(answer: HostSynced) -> None:
        told.append(taken(answer))

    job = NewJob(id="second", spec=JobSpec(argv=("true",)), queue="cpu")
    taker, terms = rig.make_sync("h1", takes=True), await rig.terms()
    await rig.store.leases.submit_to_host(
        job, taker, terms, tell=tell, foretell=lambda _: None, now=rig.now
    )
    assert told == [["second"]]


async def test_a_foretold_place_whose_transaction_fails_is_taken_back(
    rigs: tuple[Rig, Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FORETELL-1: a write of unknown fate is told to no host, so the host asks again."""
    rig = rigs[0]
    await place_one(rig, slots=1)
    await end(rig, await rig.submit_to("h1", "first"))
    said: list[object] = []

    def foretell(answer: HostSynced) -> Callable[[bool], None]:
        said.append(taken(answer))
        return lambda written: said.append(written)

    send = Tx.send

    async def break_off(tx: Tx, *steps: Any) -> Any:
        await send(tx, *steps)
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(Tx, "send", break_off)
    job = NewJob(id="second", spec=JobSpec(argv=("true",)), queue="cpu")
    taker, terms = rig.make_sync("h1", takes=True), await rig.terms()
    with pytest.raises(Unavailable):
        await rig.store.leases.submit_to_host(job, taker, terms, foretell=foretell, now=rig.now)
    assert said[:2] == [["second"], False]
    assert said.count(True) == 0


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
async def test_a_warm_store_has_planned_what_places_a_job(pg_emptied: str, warm: bool) -> None:
    async def count(tx: Tx) -> dict[str, int]:
        rows = await (
            await tx.conn.execute(b"select statement from pg_prepared_statements")
        ).fetchall()
        known = [row["statement"] for row in rows]
        return {word: sum(word in one for one in known) for word in PLACING}

    store = PostgresStore(pg_emptied, max_connections=1, warm=warm)
    await store.open()
    try:
        assert await store.session.single(count) == dict.fromkeys(PLACING, int(warm))
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
