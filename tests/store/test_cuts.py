"""A call that is cut off leaves a connection that is closed, or as good as new (CUT-1…3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from holdfast.errors import Unavailable
from holdfast.store.postgres.connection.pipeline import Connection, NoResult, Statement
from holdfast.store.postgres.connection.session import Session, Tx
from holdfast.store.postgres.store import PostgresStore
from tests.store.cuts import cut, cut_everywhere, look_at

NOW = ("read_now", {"now": None})


@pytest.fixture(params=[1, 2])
async def session(pg_emptied: str, request: pytest.FixtureRequest) -> AsyncIterator[Session]:
    session = Session(pg_emptied, max_connections=request.param)
    await session.open()
    yield session
    await session.close()


async def one(tx: Tx) -> object:
    return await tx.now(None)


async def two_together(tx: Tx) -> object:
    return await tx.many(NOW, NOW)


async def one_after_the_other(tx: Tx) -> object:
    await tx.many(NOW, NOW)
    await tx.now(None)
    return await tx.many(NOW, NOW, NOW)


async def committed_with_the_last(tx: Tx) -> object:
    await tx.now(None)
    return await tx.last(NOW, NOW)


async def failed(tx: Tx) -> object:
    await tx.now(None)
    return await tx.conn.run_all([Statement(b"select 1"), Statement(b"select 1/0")])


WORKS = [one, two_together, one_after_the_other, committed_with_the_last, failed]


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("work", WORKS)
async def test_each_await_of_a_call_may_be_cut(session: Session, work: Any, alone: bool) -> None:
    if alone and work is committed_with_the_last:
        pytest.skip("it needs a transaction")
    new = await look_at(session)

    async def look() -> None:
        assert await look_at(session) == new

    run = session.single if alone else session.transact
    await cut_everywhere(lambda: run(work), look)


async def test_many_calls_at_once_may_be_cut(pg_emptied: str) -> None:
    session = Session(pg_emptied, max_connections=3)
    await session.open()
    new = await look_at(session)

    for number in range(1, 13):
        works = (session.transact(one_after_the_other) for _ in range(5))
        was_cut = await asyncio.gather(*(cut(w, number + n) for n, w in enumerate(works)))
        assert number > 1 or any(was_cut)
        assert await look_at(session) == new
    await session.close()


async def test_the_lead_is_asked_for_again_after_a_cut(pg_emptied: str) -> None:
    store = PostgresStore(pg_emptied, max_connections=1)
    await store.open()
    lead = store.leadership

    async def look() -> None:
        asked = [await lead.try_lead() for _ in range(2)]
        assert asked[1], "the row of the lead is its own, so that the second try takes it at once"

    await cut_everywhere(lead.try_lead, look)
    await store.close()


@pytest.mark.parametrize("rolls_back", [True, False])
async def test_a_connection_of_no_pool_is_closed_by_a_cut(
    session: Session, rolls_back: bool
) -> None:
    async def look() -> None:
        for conn in made:
            assert conn.closed or conn.is_at_rest()
            await conn.close()
        made[:] = [await session.connect()]

    async def call() -> None:
        await made[0].run_all([Statement(b"select 1"), Statement(b"select 2")])

    async def roll_back() -> None:
        await made[0].run_all([Statement(b"begin")])
        await made[0].roll_back()

    made: list[Connection] = []
    await look()
    await cut_everywhere(roll_back if rolls_back else call, look)
    await made[0].close()


async def test_a_statement_without_a_result_is_no_answer(session: Session) -> None:
    async def ask(tx: Tx) -> object:
        left = tx.conn.pipeline()  # as the driver leaves it where its entry is cut
        await left.__aenter__()
        with pytest.raises(NoResult):
            await tx.rows("read_now", now=None)
        return await tx.rows("read_now", now=None)

    with pytest.raises(Unavailable):
        await session.single(ask)
    assert await session.single(one) is not None


async def test_a_connection_in_a_pipeline_is_not_lent_again(session: Session) -> None:
    lent: list[Connection] = []

    async def spoil(tx: Tx) -> None:
        lent.append(tx.conn)
        tx.conn.pgconn.enter_pipeline_mode()

    await session.single(spoil)
    assert lent[0].closed
    assert await session.single(one) is not None


async def test_a_connection_in_a_transaction_is_not_lent_again(session: Session) -> None:
    async def begin(tx: Tx) -> None:
        await tx.conn.run_all([Statement(b"begin")])

    await session.single(begin)
    assert (await look_at(session))[0]["outside"]  # type: ignore[index]


async def test_a_session_that_stayed_read_only_after_a_failover_is_not_lent_again(
    session: Session,
) -> None:
    """Its server takes the writes of new sessions again."""

    async def grow_read_only(tx: Tx) -> None:
        await tx.conn.run_all([Statement(b"set default_transaction_read_only = on")])

    async def write(tx: Tx) -> object:
        words = b"select pg_notify('nobody', ''), txid_current()", b"create temporary table x ()"
        return await tx.conn.run_all([Statement(word) for word in words])

    await session.single(grow_read_only)
    with pytest.raises(Unavailable, match="read-only"):
        await session.transact(write)
    assert await session.transact(write)


async def test_an_empty_result_is_a_result(session: Session) -> None:
    async def ask(tx: Tx) -> object:
        found = await tx.conn.run_all([Statement(b"select 1 where false"), Statement(b"set a.b=1")])
        return [one.rows for one in found]

    assert await session.single(ask) == [[], []]


def test_no_result_is_told_as_a_lost_connection() -> None:
    assert issubclass(NoResult, psycopg.OperationalError)
