"""A connection that sends several statements at once (`connection.pipeline`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import psycopg
import pytest

from holdfast.store.postgres.connection import pipeline
from holdfast.store.postgres.connection.pipeline import Connection, Statement
from holdfast.store.postgres.connection.session import Session, Tx

NAMES = b"select count(*) from pg_prepared_statements"


@pytest.fixture
async def session(pg_emptied: str) -> AsyncIterator[Session]:
    session = Session(pg_emptied, max_connections=1)
    await session.open()
    yield session
    await session.close()


@pytest.fixture
async def conn(session: Session) -> Connection:
    return await session.single(_lend)


async def _lend(tx: Tx) -> Connection:
    return tx.conn  # the only one, and no test asks the session for it at the same time


async def ask(conn: Connection, query: bytes, **params: object) -> list[tuple[object, ...]]:
    (found,) = await conn.run_all([Statement(query, params)])
    return [tuple(row.values()) for row in found.rows]


async def test_values_come_back_as_they_were_sent(conn: Connection) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    sent = {"n": 7, "text": 'a "b" \\', "at": at, "none": None, "some": ["x", None], "yes": True}
    query = b"select %(n)s as n, %(text)s as t, %(at)s as at, %(none)s::text as no, %(some)s::text[] as s, %(yes)s as y"
    for _ in range(2):
        assert await ask(conn, query, **sent) == [tuple(sent.values())]


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (b"text", ['a "b" \\', "NULL", "{}", ""] * 5),
        (b"text", [*["one"] * 9, "two"]),
        (b"text", [f"{n:03d}" for n in range(20)]),
        (b"text", [""] * 20),
        (b"text", ['{a,"b"}'] * 20),
        (b"text", [None] * 20),
        (b"bigint", [0] * 20),
        (b"bigint", [None, *range(20)]),
        (b"boolean", [True] * 20),
        (b"double precision", [0.5, None] * 20),
        (b"double precision", [float("inf")] * 20),
        (b"double precision", [1, 1.0] * 20),
    ],
)
async def test_columns_come_back_as_they_were_sent(
    conn: Connection, kind: bytes, column: list[object]
) -> None:
    assert await ask(conn, b"select %(some)s::" + kind + b"[] as some", some=column) == [(column,)]


async def test_what_stands_behind_a_failure_is_not_done(conn: Connection) -> None:
    await ask(conn, b"create temporary table seen (n integer)")
    write = Statement(b"insert into seen values (%(n)s)", {"n": 1})
    for _ in range(2):  # the statement that was not prepared for the failure is prepared then
        with pytest.raises(psycopg.errors.DivisionByZero):
            await conn.run_all(
                [
                    Statement(b"begin"),
                    write,
                    Statement(b"select 1 / 0"),
                    write,
                    Statement(b"commit"),
                ]
            )
        await conn.roll_back()
        assert await ask(conn, b"select * from seen") == []
    counts = [found.count for found in await conn.run_all([write, write])]
    assert (counts, await ask(conn, b"select * from seen")) == ([1, 1], [(1,), (1,)])


async def test_a_value_that_cannot_be_sent_leaves_the_connection_as_it_was(
    conn: Connection,
) -> None:
    with pytest.raises(psycopg.DataError):
        await conn.run_all([Statement(b"begin"), Statement(b"select %(t)s::text", {"t": "a\0b"})])
    assert await ask(conn, b"select 1") == [(1,)]


async def test_a_rollback_forgets_no_plan(conn: Connection) -> None:
    await ask(conn, b"select 1")
    before = await ask(conn, NAMES)
    await conn.run_all([Statement(b"begin", prepared=False), Statement(b"select 1")])
    await conn.roll_back()
    assert await ask(conn, NAMES) >= before > [(0,)]


async def test_a_connection_keeps_so_many_plans_and_drops_the_oldest(conn: Connection) -> None:
    for n in range(pipeline.MAX_PREPARED + 20):
        assert await ask(conn, b"select %d" % n) == [(n,)]
        assert await ask(conn, b"select 'often'") == [("often",)]
    (found,) = await conn.run_all([Statement(NAMES)])
    assert found.rows[0]["count"] <= pipeline.MAX_PREPARED + 2
    assert await ask(conn, b"select 0") == [(0,)], "one that was dropped is prepared again"


async def test_a_transaction_may_see_one_moment(session: Session) -> None:
    async def read(tx: Tx) -> object:
        tx.see_one_moment()
        await tx.rows("count_jobs")
        return await ask(tx.conn, b"show transaction_isolation")

    assert await session.transact(read) == [("repeatable read",)]
