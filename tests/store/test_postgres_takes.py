"""What ends the work of a host, a queue or a job meets a take that is not committed yet: it waits for
the take, and then ends what was taken too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import psycopg
import pytest

from holdfast.core.ids import TaskKey
from tests.store.postgres.test_fleet import active
from tests.store.rig import OK, Rig, fails
from tests.waits import within

T = TypeVar("T")
WAIT_SECONDS = 30.0


@pytest.fixture
def rig(rigs: tuple[Rig, Rig]) -> Rig:
    return rigs[0]


NEXT_BATCH = b"""
  insert into event_batches (n, at, kind, ids, began_ids, job_ids, attempts, epochs, host_ids, queues, projects, messages)
    overriding system value
  select last_value + case when is_called then 1 else 0 end, now(), '', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}'
  from event_batches_n_seq"""
"""The row that the next take writes last: the take waits for it with all its locks."""
BLOCKED = b"select count(*) from pg_locks where not granted"


async def wait_for_locks(dsn: str, count: int, *calls: asyncio.Task[Any]) -> None:
    """Wait until so many sessions wait for a lock."""
    async with (
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
        within(WAIT_SECONDS),
    ):
        while True:
            row = await (await conn.execute(BLOCKED)).fetchone()
            if row is not None and row[0] >= count:
                return
            assert not any(call.done() for call in calls), "it did not wait"
            await asyncio.sleep(0.01)


async def meet_a_take(
    rig: Rig, dsn: str, act: Callable[[], Coroutine[Any, Any, T]], host: str = "h1"
) -> T:
    """Return what `act` returns, which waits for a take by `host` that is committed only then."""
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        await conn.execute(NEXT_BATCH)
        take = asyncio.create_task(rig.sync(host, takes=True))
        await wait_for_locks(dsn, 1, take)
        acting = asyncio.create_task(act())
        await wait_for_locks(dsn, 2, take, acting)
        await conn.rollback()
    assert len((await take).offers) == 1
    return await acting


@pytest.mark.parametrize("many", [False, True])
async def test_a_cancel_that_meets_a_take_on_its_way_drains_the_job(
    rig: Rig, pg_emptied: str, many: bool
) -> None:
    await rig.host(slots=1)
    job_id, other = await rig.submit(), await rig.submit()
    jobs = rig.store.jobs
    if many:
        done = await meet_a_take(
            rig, pg_emptied, lambda: jobs.cancel_jobs([job_id, other], "enough", now=rig.now)
        )
        assert {name: job.state for name, job in done.jobs.items()} == {
            job_id: "draining",
            other: "cancelled",
        }
    else:
        await meet_a_take(rig, pg_emptied, lambda: jobs.cancel_job(job_id, "enough", now=rig.now))
    assert (await rig.job(job_id)).state == "draining"
    key = TaskKey(job_id, 0, 1)
    assert [stop.key for stop in (await rig.sync(live=[key])).preempts] == [key]


@pytest.mark.parametrize("way", ["pause", "drain", "terminate", "register"])
async def test_what_ends_the_work_of_a_host_or_queue_meets_a_take_on_its_way(
    rig: Rig, pg_emptied: str, way: str
) -> None:
    """It looks for work when it has its lock, for which it waited until the take was committed."""
    await rig.host(slots=1)
    job_id = await rig.submit()
    acts: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "pause": lambda: rig.store.settings.pause_queue("cpu", "enough", hard=True, now=rig.now),
        "drain": lambda: rig.store.hosts.move_host("h1", "drain", "enough", hard=True, now=rig.now),
        "terminate": lambda: rig.store.hosts.move_host("h1", "terminate", "gone", now=rig.now),
        "register": lambda: rig.host(slots=1),
    }
    await meet_a_take(rig, pg_emptied, acts[way])
    assert (await rig.job(job_id)).state == "draining"


@pytest.mark.parametrize("way", ["drain", "free"])
async def test_a_rented_host_that_just_takes_a_job_is_not_idle(
    rig: Rig, pg_emptied: str, way: str
) -> None:
    """SCALE-2: it looks for leases when it has the host's lock, for which it waited until the take was
    committed."""
    host = await active(rig)
    job_id = await rig.submit()
    fleet = rig.store.fleet
    acts: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "drain": lambda: fleet.drain_if_idle(host, 0, 60.0, "idle", now=rig.now),
        "free": lambda: fleet.free_host(host, "idle", now=rig.now),
    }
    assert not await meet_a_take(rig, pg_emptied, acts[way], host)
    assert (await rig.store.hosts.get_host(host)).state == "active"
    assert (await rig.job(job_id)).state == "reserved"


async def test_what_a_batch_says_once_outlives_its_first_jobs(rig: Rig) -> None:
    """Jobs taken together and ended apart share a batch of events; the older end is pruned first."""
    await rig.host(slots=4, gpus=0)
    for _ in range(4):
        await rig.submit()
    first, *others = [offer.task.key for offer in (await rig.sync(takes=True)).offers]
    await rig.sync(ended=[(first, OK)])
    rig.tick(86_400)
    await rig.sync(ended=[(key, OK) for key in others])
    told = {key: await rig.events(key.job_id) for key in others}
    assert {(e.attempt, e.epoch) for e in told[others[0]][1:]} == {(1, 1)}
    assert await rig.store.jobs.prune(0.5, now=rig.now) == 1
    assert await rig.events(first.job_id) == []
    assert {key: await rig.events(key.job_id) for key in others} == told


@pytest.mark.parametrize("others", [0, 1, 2])
async def test_alike_jobs_are_taken_in_turn_with_others(rig: Rig, others: int) -> None:
    specs: list[dict[str, Any]] = [{}, {}, {"preemptible": True}, {}, {"cpus": 2}]
    ids = [await rig.submit(**spec) for spec in (specs if others else specs[:2])]
    if others == 2:  # the first one is on its second attempt
        await rig.host("h2", slots=1)
        (first,) = (await rig.sync("h2", takes=True)).offers
        await rig.sync("h2", ended=[(first.task.key, fails(3))])
        await rig.complete(max_retries=3)
        await rig.release()
    await rig.host(slots=10)
    offers = (await rig.sync(takes=True)).offers
    assert [offer.task.key.job_id for offer in offers] == ids
    slots = {offer.task.key.job_id: offer.job.cpu_slots for offer in offers}
    assert not others or sorted(slots.values()) == [1, 1, 1, 1, 2]
    attempts = {offer.task.key.job_id: offer.task.attempt for offer in offers}
    assert sorted(attempts.values())[-1] == (2 if others == 2 else 1)
