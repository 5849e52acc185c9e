"""How many statements the hot path sends, one at a time: exact, because each costs every job and
every sync of every host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from holdfast.core.ids import TaskKey
from holdfast.moves.values import LogAppend
from holdfast.store.postgres.connection.pipeline import Connection, Statement, StatementResult
from holdfast.store.postgres.connection.queries import QUERIES
from holdfast.store.postgres.store import PostgresStore
from tests.store.rig import OK, Rig

NAMES = {text: name for name, text in QUERIES.items()}


@pytest.fixture
async def rig(pg_emptied: str) -> AsyncIterator[Rig]:
    store = PostgresStore(pg_emptied, max_connections=1)
    await store.open()
    yield Rig(store)
    await store.close()


@pytest.fixture
def sent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that were sent since the test cleared them, by name."""
    found: list[str] = []
    run = Connection.run_all

    async def count(conn: Connection, statements: Sequence[Statement]) -> list[StatementResult]:
        found.extend(NAMES.get(one.query, one.query.decode()) for one in statements)
        return await run(conn, statements)

    monkeypatch.setattr(Connection, "run_all", count)
    return found


async def test_a_sync_that_says_nothing_new_is_one_statement_for_all_hosts(
    rig: Rig, sent: list[str]
) -> None:
    running = []
    for name in ("h1", "h2", "h3"):
        await rig.host(name, slots=1)
        running.append(await rig.submit())
        (offer,) = (await rig.sync(name, takes=True)).offers
        await rig.sync(name, started=[offer.task.key])
    keys = [await rig.key(job_id) for job_id in running]
    syncs = [rig.make_sync(f"h{n}", live=(key,)) for n, key in enumerate(keys, 1)]
    rig.tick(5)
    sent.clear()
    answers = await rig.store.leases.sync_hosts(syncs, now=rig.now)
    assert [a.renewed for a in answers] == [((key, 300.0),) for key in keys]
    assert sent == ["begin", "touch_and_renew", "commit"]


async def test_an_end_with_the_next_take_are_four_statements_and_a_start_seven(
    rig: Rig, sent: list[str]
) -> None:
    await rig.host(slots=1)
    for _ in range(3):
        await rig.submit()
    (first,) = (await rig.sync(takes=True)).offers
    sent.clear()
    (second,) = (await rig.sync(ended=[(first.task.key, OK)], takes=True)).offers
    assert sent[sent.index("begin") :] == [
        "begin", "touch_hosts", "finish_jobs", "read_takes", "reserve_jobs", "commit",
    ]  # fmt: skip
    sent.clear()
    await rig.sync(started=[second.task.key])
    assert sent == [
        "begin", "touch_hosts", "lock_jobs", "lock_tasks", "write_tasks", "write_jobs", "write_attempts",
        "write_events", "renew_tasks", "commit",
    ]  # fmt: skip


async def test_the_end_of_a_log_without_a_byte_is_one_statement(rig: Rig, sent: list[str]) -> None:
    await rig.host(slots=1)
    await rig.submit()
    (offer,) = (await rig.sync(takes=True)).offers

    def append(key: TaskKey, data: bytes = b"") -> LogAppend:
        return LogAppend(
            key=key, stream="stdout", offset=0, data=data, ended=True, keep_bytes=1 << 20, marked=False
        )  # fmt: skip

    sent.clear()
    assert await rig.store.logs.append_logs("h1", [append(offer.task.key)]) == [0]
    assert sent == ["lock_streams"]
    (stream,) = await rig.store.logs.list_log_streams(offer.task.key.job_id)
    assert stream.ended
    stranger = TaskKey("nobody", 0, 1)
    assert await rig.store.logs.append_logs("h1", [append(stranger)]) == [None]
