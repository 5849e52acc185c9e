"""Retries and quotas on PostgreSQL where calls race: leaders, kill switches, held ones by the
thousand."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from holdfast.core.placement.plan import plan_admission
from holdfast.core.spec import JobSpec
from holdfast.errors import Unavailable
from holdfast.moves.values import NewJob, Released
from holdfast.store.postgres.connection.session import Tx
from holdfast.store.postgres.store import PostgresStore
from tests.store.rig import STOPPED, Rig, fails
from tests.waits import within

MANY = 2500
WAIT_SECONDS = 30.0


async def fill(rig: Rig, dsn: str, count: int, **columns: object) -> None:
    """Jobs whose first attempt failed and whose retry is due, `columns` set otherwise."""
    jobs = [
        NewJob(id=f"j{i:05d}", spec=JobSpec(argv=("true",), cpus=1), queue="cpu")
        for i in range(count)
    ]
    await rig.store.jobs.submit_jobs(jobs, now=rig.now)
    values = {"wait_cause": "back_off", "wait_until": rig.now, "retry_at": rig.now, **columns}
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(
            "update jobs set state = 'waiting', attempts = 1, epoch = 2, retries_charged = 1, "
            "cause = 'nonzero_exit',"
            " wait_cause = %(wait_cause)s, wait_until = %(wait_until)s, retry_at = %(retry_at)s",
            values,
        )
        await conn.execute(
            "insert into attempts (job_id, number, epoch, state, outcome, reserved_at, ended_at)"
            " select id, 1, 1, 'ended', 'requeued', created_at, created_at from jobs"
        )


async def ask(dsn: str, question: str) -> int:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        row = await (await conn.execute(question.encode())).fetchone()
        assert row is not None
        return int(row[0])


async def wait_until_blocked(dsn: str) -> None:
    """Until some session waits for a lock."""
    async with within(WAIT_SECONDS):
        while not await ask(dsn, "select count(*) from pg_locks where not granted"):
            await asyncio.sleep(0.01)


async def test_a_retry_whose_row_is_locked_for_a_moment_is_left_for_the_next_look(
    rigs: tuple[Rig, Rig], pg_emptied: str
) -> None:
    """The loop looks again soon, and not in a second as where nothing is due."""
    rig = rigs[0]
    await fill(rig, pg_emptied, 1)
    async with await psycopg.AsyncConnection.connect(pg_emptied) as conn:
        await conn.execute("select id from jobs for update")
        found = await rig.release()
        assert (found.retries, found.left) == (0, True)
    found = await rig.release()
    assert (found.retries, found.left) == (1, False)


async def release(rig: Rig, limit: int | None) -> Released:
    """Release what is due. A crowded machine opens its second connection late, and the leader asks
    again then, too."""
    while True:
        try:
            return await rig.release(limit)
        except Unavailable as error:
            if "no connection came up" not in str(error):
                raise


async def test_two_leaders_dispatch_each_retry_once(rigs: tuple[Rig, Rig], pg_emptied: str) -> None:
    """RETRY-6; and (job, number) is unique, also when two leaders admit."""
    a = rigs[0]
    await fill(a, pg_emptied, MANY)
    await asyncio.gather(
        *(rig.store.ping() for rig in rigs)
    )  # both are connected, so both take part
    calls = [release(rig, limit) for rig in rigs for limit in (None, 300, None)]
    done = await asyncio.gather(*calls)
    assert sum(found.retries for found in done) == MANY
    by_leader = [sum(found.retries for found in part) for part in (done[:3], done[3:])]
    assert min(by_leader) > 0, "one leader did it all: nothing raced"
    told = "from events where kind = 'job.retry_dispatched'"
    assert await ask(pg_emptied, f"select count(*) {told}") == MANY
    assert await ask(pg_emptied, f"select count(distinct job_id) {told}") == MANY
    assert (
        await ask(
            pg_emptied, "select count(*) from jobs where state = 'queued' and retry_at is null"
        )
        == MANY
    )
    assert await a.release() == Released()
    await a.host(slots=MANY)
    snapshot = await a.store.admission.read_admission(MANY, now=a.now)
    plan = plan_admission(snapshot.candidates, snapshot.hosts, snapshot.headroom)
    ttls = {p.job_id: 300.0 for p in plan.placements}
    applied = await asyncio.gather(
        *(rig.reserve(plan.placements[:800], ttls, now=rig.now) for rig in rigs)
    )
    assert sum(map(len, applied)) == 800
    assert await ask(pg_emptied, "select count(*) from attempts where number = 2") == 800
    assert await ask(pg_emptied, "select max(number) from attempts") == 2
    assert (
        await ask(pg_emptied, "select count(*) from attempts where number = 2 and retry_count = 1")
        == 800
    )


async def test_leaders_that_race_stay_within_their_limits(
    rigs: tuple[Rig, Rig], pg_emptied: str
) -> None:
    await fill(rigs[0], pg_emptied, 200)
    done = await asyncio.gather(*(rig.release(30) for rig in rigs))
    assert [found.retries for found in done] == [30, 30]
    assert all(found.left for found in done)
    assert await ask(pg_emptied, "select count(*) from jobs where state = 'queued'") == 60


@pytest.mark.parametrize("where", ["cluster", "project"])
async def test_a_dispatch_waits_for_a_kill_switch_that_is_being_thrown(
    rigs: tuple[Rig, Rig], pg_emptied: str, where: str
) -> None:
    """RETRY-6: the switch cannot be thrown between reading it and dispatching under it."""
    rig = rigs[0]
    await fill(rig, pg_emptied, 5)
    await rig.store.settings.put_project("default", {"max_retries": 1}, now=rig.now)
    off = "'{\"retries_enabled\": false}'"
    async with await psycopg.AsyncConnection.connect(pg_emptied) as conn:
        if where == "project":
            await conn.execute(f"update projects set settings = settings || {off}".encode())
            await conn.execute(b"update cluster set settings_rev = settings_rev + 1")
        else:
            await conn.execute(
                f"update cluster set settings = {off}, settings_rev = settings_rev + 1".encode()
            )
        call = asyncio.ensure_future(rig.release())
        await wait_until_blocked(pg_emptied)
        assert not call.done()
        await conn.commit()
    assert await asyncio.wait_for(call, WAIT_SECONDS) == Released(held=5)
    assert (
        await ask(pg_emptied, "select count(*) from events where kind = 'job.retry_dispatched'")
        == 0
    )


async def test_a_kill_switch_waits_for_the_dispatch_under_way(
    rigs: tuple[Rig, Rig], pg_emptied: str
) -> None:
    """RETRY-6, the other way round: once it is thrown, everything that it let pass is there to
    see."""
    rig = rigs[0]
    await fill(rig, pg_emptied, 3)

    async def throw() -> (
        None
    ):  # what every change of a switch does, without the event that a call of the store writes
        await ask(
            pg_emptied, "update cluster set settings_rev = settings_rev + 1 returning settings_rev"
        )

    async with await psycopg.AsyncConnection.connect(pg_emptied) as conn:
        await conn.execute(
            b"lock table events in share mode"
        )  # a dispatch cannot write its audit now
        call = asyncio.ensure_future(rig.release())
        await wait_until_blocked(pg_emptied)
        thrown = asyncio.ensure_future(throw())
        async with within(WAIT_SECONDS):
            while await ask(pg_emptied, "select count(*) from pg_locks where not granted") < 2:
                assert not thrown.done(), "it was thrown in the midst of a dispatch"
                await asyncio.sleep(0.01)
        await conn.commit()
    await asyncio.wait_for(thrown, WAIT_SECONDS)
    assert (
        await ask(pg_emptied, "select count(*) from events where kind = 'job.retry_dispatched'")
        == 3
    )
    assert await asyncio.wait_for(call, WAIT_SECONDS) == Released(retries=3)


async def test_held_retries_cost_a_tick_nothing(rigs: tuple[Rig, Rig], pg_emptied: str) -> None:
    """Not a transaction, not a lock, not a row of theirs read; and nothing when there is nothing at
    all."""
    rig = rigs[0]
    await rig.store.settings.put_project("default", {"retries_enabled": False}, now=rig.now)
    assert await rig.release() == Released()
    await fill(rig, pg_emptied, 2000, wait_cause="retries_held", wait_until=None)
    assert isinstance(rig.store, PostgresStore)
    begun: list[object] = []
    transact = rig.store.session.transact

    async def count(*args: object, **options: object) -> object:
        begun.append(args)
        return await transact(*args, **options)  # type: ignore[arg-type]  # handed through as they came

    rig.store.session.transact = count  # type: ignore[method-assign,assignment]  # watched, for this instance alone
    for _ in range(5):
        assert await rig.release() == Released()
    assert begun == []
    await rig.store.settings.put_project("default", {"retries_enabled": True}, now=rig.now)
    assert await rig.release(150) == Released(retries=150, left=True)
    assert await ask(pg_emptied, "select count(*) from jobs where wait_cause = 'back_off'") == 1850


async def test_start_times_do_not_queue_behind_retries_that_are_held_back(
    rigs: tuple[Rig, Rig], pg_emptied: str
) -> None:
    rig = rigs[0]
    await fill(rig, pg_emptied, 1500)
    late = await rig.submit(start_at=rig.now.timestamp() + 5)
    rig.tick(10)
    assert await rig.release(1) == Released(started=1, retries=1, left=True)
    assert (await rig.job(late)).state == "queued"


async def test_a_batch_that_another_leader_holds_is_passed_over(
    rigs: tuple[Rig, Rig], pg_emptied: str
) -> None:
    rig = rigs[0]
    await fill(rig, pg_emptied, 10)
    async with await psycopg.AsyncConnection.connect(pg_emptied) as conn:
        await conn.execute(b"select from jobs where id < 'j00004' for update")
        assert await asyncio.wait_for(rig.release(), WAIT_SECONDS) == Released(retries=6)
    assert await rig.release() == Released(retries=4)


async def test_a_fall_and_its_next_attempt_take_few_round_trips(
    rigs: tuple[Rig, Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gang's restart waits for each of them: ends are locked with their host and committed as they
    are written, and so is a completion."""
    trips: list[str] = []

    def count(name: str) -> None:
        real = getattr(Tx, name)

        async def counted(tx: Tx, *steps: Any, **given: Any) -> Any:
            trips.append("+".join(s if isinstance(s, str) else s[0] for s in steps))
            return await real(tx, *steps, **given)

        monkeypatch.setattr(Tx, name, counted)

    rig, _ = rigs
    await rig.host(slots=2)
    job_id, keys = await rig.running_gang(2)
    for name in ("many", "last", "rows", "run", "one"):
        count(name)
    await rig.sync(ended=[(keys[0], fails()), (keys[1], STOPPED)])
    assert trips == [
        "touch_hosts+lock_jobs+lock_tasks",
        "write_tasks+write_jobs+write_attempts+write_events",
    ]
    trips.clear()
    assert await rig.complete(at_once=True, max_retries=9, retry_delay=0.0) == [job_id]
    found = ["find_drained", "read_jobs+read_tasks"]  # one where the store is told of drains
    assert trips[:2] == found
    assert len(trips) == 4, trips
