"""Queues over HTTP where PostgreSQL's locks matter."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from holdfast.controller.runtime import remembered
from tests.unit.controller.conftest import Served
from tests.waits import within

COUNTS = (
    b"select count(*) from pg_stat_activity where wait_event_type = 'Lock' and "
    b"datname = current_database() and query like '%count(*) from jobs where state = %'"
)


async def test_a_resume_counts_before_it_releases_and_locks_nothing_meanwhile(
    served: Served,
) -> None:
    """A million jobs take seconds to count. Nothing waits for that: neither what needs the queue's
    row, such as a reservation, nor the start of its jobs once they are released."""
    await served.submit(queue="cpu")
    await served.call("POST", "/v1/queues/cpu/pause", json={"reason": "for the test"})
    async with (
        await psycopg.AsyncConnection.connect(served.store.session.dsn) as slow,
        await psycopg.AsyncConnection.connect(served.store.session.dsn, autocommit=True) as other,
    ):
        await slow.execute(b"lock table jobs in access exclusive mode")
        resume = asyncio.create_task(served.call("POST", "/v1/queues/cpu/resume"))
        async with within(10):
            while (await (await other.execute(COUNTS)).fetchone()) == (0,):
                await asyncio.sleep(0.01)
        read = b"select paused_at is not null from queues where name = 'cpu' for update nowait"
        assert await (await other.execute(read)).fetchone() == (True,), "released, then counted"
        await slow.rollback()
    answer = (await resume).json()
    assert (answer["paused_at"], answer["queued"]) == (None, 1)


async def test_queues_are_listed_without_a_count_of_the_jobs_that_wait(served: Served) -> None:
    await served.submit(queue="cpu")
    for query, queued in (("", 1), ("?waiting=0", 0)):
        items = (await served.call("GET", f"/v1/queues{query}")).json()["items"]
        assert {each["name"]: each["queued"] for each in items}["cpu"] == queued


async def test_a_large_count_is_remembered_for_a_moment_and_a_pause_is_seen_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(remembered, "MANY_JOBS", 2)
    served.controller.queue_counts = remembered.QueueCounts(served.store, lambda: now[0])

    async def look() -> tuple[int, bool]:
        items = (await served.call("GET", "/v1/queues")).json()["items"]
        (cpu,) = [each for each in items if each["name"] == "cpu"]
        return cpu["queued"], cpu["paused_at"] is not None

    seen = []
    for paused in (False, False, True):
        await served.submit(queue="cpu")
        if paused:
            await served.call("POST", "/v1/queues/cpu/pause", json={})
        seen.append(await look())
    now[0] += 2.1
    assert [*seen, await look()] == [(1, False), (2, False), (2, True), (3, True)]
