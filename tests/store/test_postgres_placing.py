"""Takes on PostgreSQL: two controllers that find the same room, and two takes at the same time
(TAKE-4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import psycopg
import pytest

from holdfast.core.placement.takes import TakeTerms
from holdfast.errors import Unavailable
from holdfast.moves.reports import Draft
from holdfast.moves.values import HostSync
from holdfast.store.postgres.connection.session import Tx
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.sync.choices import Choices
from holdfast.store.postgres.sync.kinds import TakableKinds
from tests.store.conformance.takes import place_one, taken
from tests.store.rig import Rig
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
        assert await store.session.single(count) == dict.fromkeys(PLACING, warm)
    finally:
        await store.close()


async def take_beside(rig: Rig, dsn: str, then: Callable[[Any], Awaitable[object]]) -> list[Any]:
    """Let two hosts of two slots take at the same time, do `then` while both wait to write, and
    return their answers, or what they failed of."""
    for name in ("h1", "h2"):
        await rig.host(name, slots=2)
    for number in range(5):
        await rig.submit(f"job-{number}")
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        await conn.execute(b"lock table tasks in share mode")
        calls = []
        for number, name in enumerate(("h1", "h2"), 1):
            calls.append(asyncio.create_task(rig.sync(name, takes=True)))
            async with within(WAIT_SECONDS):
                while await ask(dsn) < number:
                    await asyncio.sleep(0.01)
        await then(conn)
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_of_two_takes_at_the_same_time_each_has_jobs_of_its_own(
    rigs: tuple[Rig, Rig], pg_emptied: str
) -> None:
    found = await take_beside(rigs[0], pg_emptied, lambda conn: conn.commit())
    assert [taken(answer) for answer in found] == [["job-0", "job-1"], ["job-2", "job-3"]]
    assert [answer.settled for answer in found] == [True, True]


class Reading:
    """A transaction that reads a queue of two jobs as it was before `meanwhile` was done."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._meanwhile = meanwhile

    async def many(self, *steps: tuple[str, dict[str, Any]]) -> list[list[dict[str, Any]]]:
        self._meanwhile()
        but = dict(steps)["read_takable"]["but"]
        ids = [job_id for job_id in ("job-0", "job-1") if job_id not in but]
        queued: dict[str, list[object]] = {"ids": [*ids], "epochs": [0], "queues": ["cpu"]}
        queued |= {"kinds": ["k"], "shuns": [None], "fresh": [True], "plain": [True]}
        room = {"host_id": "h1", "name": "h1", "incarnation": "i", "queues": [], "labels": {}}
        room |= {"cpu_slots": 1, "memory_bytes": 0, "gpus": [], "faults": []}
        room |= {"busy_cpu_slots": 0, "busy_memory_bytes": 0, "busy_devices": []}
        return [[{"allowed": True, "passed": (), "now": None}], [room], [queued]]

    async def rows(self, *_: object, ids: Sequence[str]) -> list[dict[str, Any]]:
        plain = {"name": "true", "queue": "cpu", "project": "default", "priority": 50, "tasks": 1}
        plain |= {"gpus": 0, "cpu_slots": 1, "memory_bytes": 0, "spec": '{"argv": ["true"]}'}
        return [{"job_id": job_id, **plain} for job_id in ids]


async def test_a_take_that_is_written_while_a_queue_is_read_is_not_chosen_again() -> None:
    """The rows that are read may be those from before its commit."""
    choices, terms = Choices(TakableKinds()), TakeTerms(revision=0, ttls={"cpu": 60.0}, whole=True)
    drafts = [Draft(HostSync(host_id="h1", incarnation="i", takes=True), "ok")]
    at = datetime(2026, 1, 1, tzinfo=UTC)
    first = await choices.choose(cast(Tx, Reading()), drafts, terms, at)
    beside = Reading(lambda: choices.release(first))
    second = await choices.choose(cast(Tx, beside), drafts, terms, at)
    assert [choice.job_ids for choice in (first, second)] == [["job-0"], ["job-1"]]


async def test_what_a_failed_take_had_chosen_is_taken_by_the_next(
    rigs: tuple[Rig, Rig], pg_emptied: str
) -> None:
    async def cancel_first(conn: Any) -> None:
        await conn.execute(
            b"select pg_cancel_backend(pid) from pg_locks where not granted order by waitstart limit 1"
        )
        await conn.commit()

    found = await take_beside(rigs[0], pg_emptied, cancel_first)
    assert isinstance(found[0], Unavailable)
    assert taken(found[1]) == ["job-2", "job-3"]
    assert taken(await rigs[0].sync("h1", takes=True)) == ["job-0", "job-1"]


async def ask(dsn: str) -> int:
    """How many sessions wait for a lock."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        row = await (await conn.execute(BLOCKED)).fetchone()
        assert row is not None
        return int(row[0])
