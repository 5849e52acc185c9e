"""The PostgreSQL store when connections break, servers stop or freeze, and transactions overlap."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import psycopg
import pytest

from holdfast.core.causes import Cause
from holdfast.core.endings.decide import Policy
from holdfast.core.endings.replace import plan_replacement
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import plan_admission
from holdfast.core.spec import JobSpec
from holdfast.errors import Stale, Unavailable
from holdfast.moves.values import JobFilter, NewJob
from holdfast.store.embedded.postgres import EmbeddedPostgres
from holdfast.store.postgres.connection.leadership import LEAD_SECONDS
from holdfast.store.postgres.connection.migrate import migrate
from holdfast.store.postgres.connection.session import Session, Tx
from holdfast.store.postgres.store import PostgresStore
from tests import waits
from tests.store.rig import OK, Rig
from tests.waits import in_time, stretch, within

OTHERS = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


@pytest.fixture
def dsn(pg_migrated: str) -> str:
    return pg_migrated


@pytest.fixture
async def rig(dsn: str) -> AsyncIterator[Rig]:
    store = PostgresStore(dsn)
    await store.open()
    yield Rig(store)
    await store.close()


def kill_backends(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as conn:
        rows = conn.execute(
            f"select pg_terminate_backend(pid) from ({OTHERS}) o".encode()
        ).fetchall()
    return len(rows)


async def wait_until(dsn: str, question: str) -> None:
    """Poll until the database answers `question` with true."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        for _ in range(500):
            row = await (await conn.execute(question.encode())).fetchone()
            if row is not None and row[0]:
                return
            await asyncio.sleep(0.01)
    raise AssertionError(f"never true: {question}")


async def test_idle_connections_that_died_are_not_noticed(rig: Rig, dsn: str) -> None:
    await rig.host()
    await asyncio.gather(*(rig.store.now() for _ in range(8)))  # fill the pool
    assert kill_backends(dsn) >= 1
    job_id = await rig.submit()
    assert kill_backends(dsn) >= 1
    assert (await rig.job(job_id)).state == "queued"


async def test_a_backend_killed_in_the_middle_is_tried_again(rig: Rig, dsn: str) -> None:
    """The call waits for a lock, its backend is killed before COMMIT was sent: nothing happened, so
    it is done again."""
    await rig.host()
    job_id, _ = await rig.running()
    with psycopg.connect(dsn) as blocker:
        blocker.execute("select from jobs where id = %s for update", (job_id,))
        call = asyncio.ensure_future(
            rig.store.jobs.drain_job(job_id, Cause.PREEMPTED, "room", now=rig.now)
        )
        waits = "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        await wait_until(dsn, waits)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where wait_event_type = "
                "'Lock'"
            )
        blocker.rollback()
    assert await in_time(call, 20) is True
    assert (await rig.kinds(job_id)).count("job.draining") == 1


@pytest.mark.parametrize("last", ["before its commit", "its commit", "its last words"])
async def test_a_transaction_of_a_process_that_got_no_turn_is_tried_again(
    dsn: str, last: str
) -> None:
    """A crowded machine gave the process no turn for the seconds that a transaction may be idle, so
    PostgreSQL has rolled it back before the next word came, be that a COMMIT."""
    backends: list[int] = []

    async def work(tx: Tx) -> int:
        await tx.now(None)  # begins the transaction
        await tx.conn.execute("insert into once values (1)")
        backends.append(tx.conn.info.backend_pid)
        if len(backends) == 1:
            await tx.conn.execute("set local idle_in_transaction_session_timeout = '1ms'")
            with psycopg.connect(dsn, autocommit=True) as conn:  # blocks this whole thread
                gone = "select count(*) = 0 from pg_stat_activity where pid = %s"
                waits.wait_until(lambda: conn.execute(gone, backends).fetchone() == (True,))
        if last == "before its commit":
            await tx.now(None)
        elif last == "its last words":
            await tx.last(("read_now", {"now": None}))
        return len(backends)

    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("create table once (n int)")
    store = PostgresStore(dsn)
    await store.open()
    assert await store.session.transact(work) == 2
    await store.close()
    with psycopg.connect(dsn) as conn:
        assert conn.execute("select * from once").fetchall() == [(1,)]


async def test_a_transaction_that_is_told_it_was_idle_is_tried_again(rig: Rig) -> None:
    """The server's word may be read before the end of its connection is."""
    tries: list[Tx] = []

    async def work(tx: Tx) -> int:
        tries.append(tx)
        if len(tries) == 1:
            raise psycopg.errors.IdleInTransactionSessionTimeout
        return len(tries)

    session = cast(PostgresStore, rig.store).session
    assert await session.transact(work) == 2


async def test_a_cancelled_call_ends_even_when_its_connection_breaks_under_the_rollback(
    dsn: str,
) -> None:
    """A loop that is told to stop while the database goes down must stop, not begin its call
    again."""
    begun: list[Tx] = []

    async def work(tx: Tx) -> None:
        begun.append(tx)
        await tx.now(None)  # begins the transaction
        try:
            await asyncio.sleep(600)
        finally:
            with socket.socket(fileno=os.dup(tx.conn.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    store = PostgresStore(dsn)
    await store.open()
    call = asyncio.ensure_future(store.session.transact(work))
    async with within(20):
        while not begun or begun[0].conn.info.transaction_status != 2:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert len(begun) == 1
    await store.close()


def hold_first_commit(dsn: str, table: str) -> None:
    """A deferred trigger holds the first COMMIT of an insert into `table` open."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("create sequence held")
        conn.execute(
            "create function slow_commit() returns trigger language plpgsql as"
            " $$ begin if nextval('held') = 1 then perform pg_sleep(30); end if; return null; end "
            "$$"
        )
        conn.execute(
            f"create constraint trigger slow after insert on {table} deferrable initially deferred"
            " for each row execute function slow_commit()".encode()
        )


async def kill_sleeper(dsn: str) -> None:
    await wait_until(dsn, "select count(*) > 0 from pg_stat_activity where wait_event = 'PgSleep'")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'PgSleep'"
        )


async def test_the_connection_that_showed_that_it_works_is_the_next_one_asked_for(dsn: str) -> None:
    session = Session(dsn)
    await session.open()
    with psycopg.connect(dsn, autocommit=True) as conn:
        there = {pid for (pid,) in conn.execute(OTHERS)}
        kept = await session.connect()
        assert kept.info.backend_pid in there
        await kept.close()
    await session.close()


async def test_a_connection_that_was_not_asked_for_is_closed_with_the_rest(dsn: str) -> None:
    session = Session(dsn)
    await session.open()
    await session.close()
    await wait_until(dsn, f"select count(*) = 0 from ({OTHERS}) o")


async def test_a_commit_of_unknown_fate_is_unavailable_and_the_call_may_be_repeated(
    rig: Rig, dsn: str
) -> None:
    """The backend dies in COMMIT."""
    hold_first_commit(dsn, "jobs")
    jobs = [
        NewJob(id=f"j{n}", spec=JobSpec(argv=("true",), idempotency_key=f"k{n}"), queue="cpu")
        for n in (1, 2)
    ]
    call = asyncio.ensure_future(rig.store.jobs.submit_jobs(jobs))
    await kill_sleeper(dsn)
    with pytest.raises(Unavailable, match="unknown"):
        await in_time(call, 20)
    for _ in range(2):
        assert [done.job.id for done in await rig.store.jobs.submit_jobs(jobs)] == ["j1", "j2"]
    assert await rig.kinds() == ["job.submitted", "job.submitted"]


async def test_one_job_is_submitted_again_where_its_connection_broke_and_is_there_once(
    rig: Rig, dsn: str
) -> None:
    """Its one statement is its transaction, and may be sent twice."""
    hold_first_commit(dsn, "jobs")
    job = NewJob(id="j1", spec=JobSpec(argv=("true",), idempotency_key="k"), queue="cpu")
    call = asyncio.ensure_future(rig.store.jobs.submit_jobs([job]))
    await kill_sleeper(dsn)
    for answer in (await in_time(call, 20), await rig.store.jobs.submit_jobs([job])):
        ((done),) = answer
        assert (done.job.id, done.created) == ("j1", True)
    other = NewJob(id="j2", spec=job.spec, queue="cpu")
    ((found),) = await rig.store.jobs.submit_jobs([other])
    assert (found.job.id, found.created) == ("j1", False)
    assert await rig.kinds() == ["job.submitted"]


async def test_a_commit_that_went_with_its_statements_is_as_unknown(rig: Rig, dsn: str) -> None:
    await rig.host()
    job_id = await rig.submit()
    hold_first_commit(dsn, "attempts")
    call = asyncio.ensure_future(rig.admit())
    await kill_sleeper(dsn)
    with pytest.raises(Unavailable, match="unknown"):
        await in_time(call, 20)
    assert (await rig.job(job_id)).state == "queued"
    assert await rig.admit() == [job_id]
    assert (await rig.kinds()).count("job.reserved") == 1


async def test_a_statement_that_fails_takes_the_commit_behind_it_with_it(
    rig: Rig, dsn: str
) -> None:
    await rig.host()
    job_id = await rig.submit()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("alter table attempts add constraint nothing_starts check (number < 1)")
    with pytest.raises(psycopg.errors.CheckViolation):
        await rig.admit()
    assert ((await rig.job(job_id)).state, await rig.store.jobs.list_tasks(job_id)) == (
        "queued",
        [],
    )
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("alter table attempts drop constraint nothing_starts")
    assert await rig.admit() == [job_id]  # the connection is whole


async def test_a_cancelled_call_leaves_nothing_half_done(rig: Rig, dsn: str) -> None:
    await rig.host()
    job_id, _ = await rig.running()
    with psycopg.connect(dsn) as blocker:
        blocker.execute("select from jobs where id = %s for update", (job_id,))
        call = asyncio.ensure_future(rig.store.jobs.cancel_job(job_id, "stop", now=rig.now))
        await wait_until(
            dsn, "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock'"
        )
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        blocker.rollback()
    assert (await rig.job(job_id)).state == "running"


async def test_events_of_an_older_transaction_that_commits_later_are_not_missed(
    rig: Rig, dsn: str
) -> None:
    """STORE-4: the reader waits for the older transaction rather than run past it."""
    older = await psycopg.AsyncConnection.connect(dsn)
    await older.execute("insert into events (at, kind, message) values (now(), 'x', 'older')")
    await rig.submit("newer")
    assert await rig.store.events.read_events(None) == []
    assert await rig.store.events.read_events(None, tail=5) == []
    assert (await rig.store.read_gauges()).oldest_transaction_seconds > 0
    await older.commit()
    await older.close()
    assert [e.message for e in await rig.store.events.read_events(None)] == ["older", "submitted"]


async def test_events_are_complete_under_concurrent_writers(rig: Rig) -> None:
    async def write(n: int) -> None:
        for i in range(10):
            await rig.submit(f"w{n}-{i}")

    async def read() -> list[str]:
        seen: list[str] = []
        after = None
        while len(seen) < 60:
            for event in await rig.store.events.read_events(after, limit=7):
                seen.append(event.job_id or "")
                after = event.id
            await asyncio.sleep(0)
        return seen

    reader = asyncio.ensure_future(read())
    await asyncio.gather(*(write(n) for n in range(6)))
    seen = await in_time(reader, 30)
    assert sorted(seen) == sorted(f"w{n}-{i}" for n in range(6) for i in range(10))
    assert [e.job_id for e in await rig.events()] == seen


async def test_racing_admissions_and_syncs_give_each_slot_once(rig: Rig) -> None:
    """Several replicas at once: no deadlock reaches a caller, no slot is given twice, every job
    ends once."""
    for name in ("h1", "h2", "h3"):
        await rig.host(name, slots=2)
    ids = [await rig.submit(tasks=1 + i % 2) for i in range(24)]

    async def controller() -> None:
        while await rig.store.jobs.list_jobs(
            JobFilter(states=("queued", "reserved", "running", "draining"))
        ):
            await rig.admit()
            for host in await rig.store.hosts.list_hosts():
                assert host.busy_cpu_slots <= host.cpu_slots
            await rig.complete(infra_cap=100)

    async def agent(name: str) -> None:
        running: list[TaskKey] = []
        while await rig.store.jobs.list_jobs(
            JobFilter(states=("queued", "reserved", "running", "draining"))
        ):
            asked = await rig.sync(name, live=running)
            claimed = [(claim.key, 4711) for claim in asked.claims]
            answer = await rig.sync(name, live=running, claimed=claimed)
            fresh = {offer.task.key for said in (asked, answer) for offer in said.offers}
            running += fresh.difference(running)
            await rig.sync(name, live=running, started=running)
            ended, running = running[:1], running[1:]
            await rig.sync(name, live=running, ended=[(key, OK) for key in ended])

    await asyncio.wait_for(
        asyncio.gather(controller(), controller(), *(agent(n) for n in ("h1", "h2", "h3"))), 60
    )
    assert {(await rig.job(i)).state for i in ids} == {"succeeded"}
    assert (await rig.kinds()).count("job.succeeded") == len(ids)


async def until_it_leads(store: PostgresStore) -> None:
    async with within(10):
        while not await store.leadership.try_lead():
            await asyncio.sleep(0.05)


async def test_one_of_two_leads_until_it_gives_the_lead_back(rig: Rig, dsn: str) -> None:
    other = PostgresStore(dsn)
    await other.open()
    try:
        assert await rig.store.leadership.try_lead() is True
        assert await other.leadership.try_lead() is False
        assert kill_backends(dsn) >= 1
        assert await rig.store.leadership.try_lead() is False  # it learns that it lost, once
        assert await other.leadership.try_lead() is False  # the lead has not run out
        assert await rig.store.leadership.try_lead() is True  # a new one, of the same holder
        await rig.store.leadership.stop_leading()
        assert await other.leadership.try_lead() is True
        assert await rig.store.leadership.try_lead() is False
    finally:
        await other.close()


async def test_a_lead_lasts_by_the_time_that_is_given(rigs: tuple[Rig, Rig]) -> None:
    rig, other = rigs
    assert await rig.store.leadership.try_lead(now=rig.now) is True
    assert await other.store.leadership.try_lead(now=rig.tick(LEAD_SECONDS - 1)) is False
    assert await rig.store.leadership.try_lead(now=rig.now) is True
    assert await other.store.leadership.try_lead(now=rig.tick(LEAD_SECONDS - 1)) is False
    assert await other.store.leadership.try_lead(now=rig.tick(1)) is True
    assert await rig.store.leadership.try_lead(now=rig.now) is False


async def test_a_lead_that_is_not_renewed_runs_out_and_its_holder_changes_nothing(
    rig: Rig, dsn: str
) -> None:
    """LEAD-3: a leader that was frozen thaws after another took over, in the middle of its work."""
    slow, other = (PostgresStore(dsn, lead_seconds=0.3) for _ in range(2))
    await slow.open()
    await other.open()
    try:
        await until_it_leads(slow)
        with slow.leadership.fenced():
            await slow.jobs.cancel_job(await rig.submit("while it leads"), "asked to")
            await until_it_leads(other)
            kept = await rig.submit("while another leads")
            with pytest.raises(Stale, match="another replica leads"):
                await slow.jobs.cancel_job(kept, "asked to")
            assert (await slow.jobs.get_job(kept)).state == "queued"  # reading is no write
        with other.leadership.fenced():
            await until_it_leads(slow)
            with pytest.raises(Stale):  # its number is old, though it may lead again
                await other.jobs.cancel_job(kept, "asked to")
            await until_it_leads(other)
            with pytest.raises(Stale):
                await other.jobs.cancel_job(kept, "asked to")
        await slow.jobs.cancel_job(kept, "asked to")
        assert (await rig.job(kept)).state == "cancelled"
    finally:
        await slow.close()
        await other.close()


async def test_a_change_of_leader_waits_for_the_old_ones_commit(rig: Rig, dsn: str) -> None:
    """LEAD-3: between the check and the commit of a leader's write no other replica takes over."""
    store = PostgresStore(dsn, lead_seconds=3.0)
    await store.open()
    try:
        await until_it_leads(rig.store)
        await rig.store.leadership.stop_leading()
        await until_it_leads(store)
        row = psycopg.connect(dsn).execute("select number from leadership").fetchone()
        assert row is not None
        with psycopg.connect(dsn) as conn:
            conn.execute("create temporary table wrote_something as select 1")
            conn.execute("select check_lead(%s, null)", row)
            await asyncio.sleep(3.1)  # its time is over
            assert await rig.store.leadership.try_lead() is False
        assert await rig.store.leadership.try_lead() is True
    finally:
        await store.close()


async def test_hints_cross_processes_and_survive_a_lost_connection(rig: Rig, dsn: str) -> None:
    """HINT-1: two replicas that listen know of each other."""
    other = PostgresStore(dsn)
    await other.open()
    hints, given = other.leadership.hints(), set[str]()

    async def listen(topic: str) -> None:
        while (heard := await anext(hints)) != topic:
            assert heard in given  # of those that were given again meanwhile

    async def until(topic: str) -> None:
        given.add(topic)
        async with within(20):
            listening = asyncio.ensure_future(listen(topic))
            while not listening.done():
                rig.store.leadership.hint(
                    topic
                )  # a hint may be lost: the connections are only just being made
                await asyncio.wait([listening], timeout=0.05)
            await listening

    try:
        await until("admit")
        kill_backends(dsn)
        await until("host:abc")
    finally:
        await other.close()


async def test_connections_for_hints_end_though_the_word_is_lost_in_a_clean_up_that_fails(
    dsn: str,
) -> None:
    """Otherwise closing the store would wait for ever."""
    store, served = PostgresStore(dsn), asyncio.Event()

    async def serve(_: object) -> None:
        served.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise psycopg.OperationalError("the connection broke while it was given back") from None

    task = asyncio.create_task(store.leadership._keep(serve))
    await served.wait()
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=stretch(20))
    assert done
    assert task.cancelled()


@pytest.fixture
def own_server(memory_path: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(memory_path / "pg")
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.mark.slow
async def test_a_server_that_stops_and_comes_back(own_server: EmbeddedPostgres) -> None:
    dsn = own_server.dsn("postgres")
    migrate(dsn)
    store = PostgresStore(dsn)
    await store.open()
    rig = Rig(store)
    try:
        job_id = await rig.submit()
        assert await store.leadership.try_lead() is True
        await asyncio.to_thread(own_server.stop)
        for call in (store.ping(), rig.job(job_id), rig.submit("other")):
            with pytest.raises(Unavailable):
                await in_time(call, 15)
        assert await store.leadership.try_lead() is False
        await asyncio.to_thread(own_server.start)
        async with within(20):
            while True:
                try:
                    await store.ping()
                    break
                except Unavailable:
                    await asyncio.sleep(0.05)
        assert (await rig.job(job_id)).state == "queued"
        assert await store.leadership.try_lead() is True
    finally:
        await store.close()


@pytest.mark.slow
async def test_a_frozen_server_is_unavailable_in_time(rig: Rig, dsn: str) -> None:
    """SIGSTOP on the store's backends: a call ends at its limit instead of hanging, and closing
    does too."""
    store = PostgresStore(dsn, call_seconds=1.0, max_connections=2)
    await store.open()
    await store.now()
    with psycopg.connect(dsn, autocommit=True) as conn:
        pids = [row[0] for row in conn.execute(OTHERS.encode()).fetchall()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unavailable):
            await in_time(store.ping(), 10)
        await in_time(store.close(), 10)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def test_two_leaders_place_a_fallen_member_once(rig: Rig) -> None:
    """Both have read the same, and write at the same time: one decision, one place, one charge
    (FENCE-1, ADMIT-2)."""
    job_id, keys = await rig.supervised(hosts=("h1", "h2", "h3", "h4"))
    for rank in (1, 2, 3):
        await rig.sync(
            await rig.where(job_id, rank), ended=[(keys[rank], TaskFacts(signal=9, xids=(79,)))]
        )
    found = await rig.store.members.list_members(100)
    plans = [(m.task.key, plan_replacement(m.job, m.task, Policy(), ())) for m in found]
    done = await asyncio.gather(
        *(rig.store.members.replace_members(plans[::step], now=rig.now) for step in (1, -1, 1, -1))
    )
    assert sorted(len(keys) for keys in done) == [0, 0, 0, 3]
    for host in ("h5", "h6", "h7"):
        await rig.host(host, slots=1)
    snap = await rig.store.admission.read_admission(100, now=rig.now)
    placed = plan_admission(snap.candidates, snap.hosts, snap.headroom, snap.quotas).placements
    ttls = {job_id: 300.0}
    seated = await asyncio.gather(
        *(
            rig.store.members.seat_members(placed[::step], ttls, now=rig.now)
            for step in (1, -1, 1, -1)
        )
    )
    assert sorted(seated) == [[], [], [], [job_id]]
    tasks = await rig.store.jobs.list_tasks(job_id)
    assert sorted(str(task.host_id) for task in tasks[1:]) == ["h5", "h6", "h7"]
    assert {task.epoch for task in tasks[1:]} == {(await rig.job(job_id)).epoch}
    assert {rank: c.infra for rank, c in (await rig.job(job_id)).rank_charges.items()} == {
        "1": 1,
        "2": 1,
        "3": 1,
    }
    quarantined = {
        host.id for host in await rig.store.hosts.list_hosts() if host.state == "quarantined"
    }
    assert len(quarantined) == 3
