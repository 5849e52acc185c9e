"""Jobs that a host takes many at a time are one row until it speaks again, and no reader can tell
(HANDOVER-1 … HANDOVER-5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import psycopg
import pytest

from holdfast.core.ids import TaskKey
from holdfast.moves.values import HostSynced, JobFilter
from holdfast.store.postgres.connection import session
from holdfast.store.postgres.connection.line import Asking, Connection, Found
from holdfast.store.postgres.connection.session import Tx
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.sync import handovers

# Each store runs these suites as they are (F403).
from tests.store.conformance.fleet import active
from tests.store.conformance.takes import *  # noqa: F403
from tests.store.rig import OK, Rig, fails
from tests.waits import within

T = TypeVar("T")
WAIT_SECONDS = 30.0
MANY = handovers.HANDED_FROM


@pytest.fixture
async def rig(pg_emptied: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """A store that hands over every job that it may, for the conformance suite."""
    monkeypatch.setattr(handovers, "HANDED_FROM", 1)
    store = PostgresStore(pg_emptied)
    await store.open()
    yield Rig(store)
    await store.close()


async def take_many(rig: Rig, count: int = MANY, **spec: Any) -> list[TaskKey]:
    """A host that takes `count` jobs at once; their tasks."""
    await rig.host(slots=count, gpus=0)
    for _ in range(count):
        await rig.submit(**spec)
    answer = await rig.sync(takes=True)
    return [offer.task.key for offer in answer.offers]


async def count_rows(rig: Rig) -> dict[str, int]:
    """Return the number of rows by table. Leaves handovers packed."""
    assert isinstance(rig.store, PostgresStore)

    async def count(tx: Tx) -> dict[str, int]:
        found = await tx.conn.execute(
            """select (select count(*) from handovers) as handovers, (select count(*) from tasks) as tasks,
                      (select count(*) from attempts) as attempts, (select count(*) from ready_jobs) as ready"""
        )
        return dict((await found.fetchall())[0])

    return await rig.store.session.beside_handovers().single(count)


async def test_many_jobs_are_one_row_until_their_host_says_that_they_ended(rig: Rig) -> None:
    keys = await take_many(rig)
    assert len(keys) == MANY
    assert await count_rows(rig) == {"handovers": 1, "tasks": 0, "attempts": 0, "ready": 0}
    assert await rig.store.jobs.count_jobs() == {("cpu", "reserved"): MANY}
    rig.tick(3)
    answer = await rig.sync(ended=[(key, OK) for key in keys])
    assert set(answer.acked) == set(keys)
    assert await count_rows(rig) == {"handovers": 0, "tasks": 0, "attempts": MANY, "ready": 0}
    for key in keys:
        assert (await rig.job(key.job_id)).state == "succeeded"
        assert await rig.kinds(key.job_id) == [
            *("job.submitted", "job.reserved", "job.started", "job.succeeded")
        ]


async def test_a_host_that_is_known_by_its_key_leaves_handovers_alone(rig: Rig) -> None:
    """Its key is looked up once a minute, and of thousands of hosts, at every moment."""
    await take_many(rig)
    key = b"h1".ljust(32, b".")
    found = await rig.store.hosts.find_hosts_by_keys([key])
    assert found[key].id == "h1"
    assert (await count_rows(rig))["handovers"] == 1


async def test_a_job_has_the_same_history_as_one_that_was_not_handed_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for handed_from in (1, 1000):
        monkeypatch.setattr(handovers, "HANDED_FROM", handed_from)
        await rig.host(f"host-{handed_from}", slots=1)
        job_id = await rig.submit()
        (offer,) = (await rig.sync(f"host-{handed_from}", takes=True)).offers
        rig.tick(3)
        await rig.sync(f"host-{handed_from}", ended=[(offer.task.key, OK)])
        job, (attempt,) = await rig.job(job_id), await rig.store.jobs.list_attempts(job_id)
        events = [e for e in await rig.events() if e.job_id == job_id]
        ids = {job_id: "J", f"host-{handed_from}": "H"}
        text = repr(
            (job, attempt, [(e.kind, e.message, e.data, e.attempt, e.epoch) for e in events])
        )
        for name, short in ids.items():
            text = text.replace(name, short)
        seen.append(text)
        rig.tick(-3)
    assert seen[0] == seen[1]


async def test_what_a_batch_says_once_outlives_its_first_jobs(rig: Rig) -> None:
    """Jobs taken together and ended apart share a batch of events; the older end is pruned first."""
    first, *others = await take_many(rig)
    await rig.sync(ended=[(first, OK)])
    rig.tick(86_400)
    await rig.sync(ended=[(key, OK) for key in others])
    told = {key: await rig.events(key.job_id) for key in others}
    assert {(e.attempt, e.epoch) for e in told[others[0]][1:]} == {(1, 1)}
    assert await rig.store.jobs.prune(0.5, now=rig.now) == 1
    assert await rig.events(first.job_id) == []
    assert {key: await rig.events(key.job_id) for key in others} == told


async def test_what_has_not_ended_gets_rows_of_its_own(rig: Rig) -> None:
    """One ended, one failed, one lives, and of the others the host has not heard."""
    good, bad, lives, *unheard = await take_many(rig)
    answer = await rig.sync(ended=[(good, OK), (bad, fails(3))], live=[lives], started=[lives])
    assert set(answer.acked) == {good, bad}
    assert [key for key, _ in answer.renewed] == [lives]
    assert {offer.task.key for offer in answer.offers} == set(unheard), "offered again"
    assert await count_rows(rig) == {
        "handovers": 0,
        "tasks": MANY - 1,
        "attempts": MANY,
        "ready": 0,
    }
    states = [(await rig.job(key.job_id)).state for key in (good, bad, lives, unheard[0])]
    assert states == ["succeeded", "draining", "running", "reserved"]


@pytest.mark.parametrize("incarnation", ["inc-other", "inc\x00"], ids=["other", "malformed"])
async def test_an_end_of_another_incarnation_is_refused(rig: Rig, incarnation: str) -> None:
    keys = await take_many(rig)
    answer = await rig.sync(incarnation=incarnation, ended=[(key, OK) for key in keys])
    assert answer.status == "stale"
    assert (await count_rows(rig))["handovers"] == 1
    assert (await rig.job(keys[0].job_id)).state == "reserved"


async def count_trips(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, keys: Sequence[TaskKey]
) -> tuple[HostSynced, int]:
    """Have a host tell that its tasks succeeded, and take others; return the answer, and how many
    round trips to the database that took."""
    sync, terms = rig.make_sync(takes=True, ended=[(key, OK) for key in keys]), await rig.terms()
    trips = 0
    run_all = Connection.run_all

    async def count(conn: Connection, asked: Sequence[Asking]) -> list[Found]:
        nonlocal trips
        trips += 1
        return await run_all(conn, asked)

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "run_all", count)
        (answer,) = await rig.store.leases.sync_hosts([sync], terms=terms, now=rig.now)
    return answer, trips


async def test_ends_are_settled_with_the_statement_that_locks_their_host(
    rig: Rig, pg_emptied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the process that handed the jobs over: another one does not know of them before it looks."""
    keys = await take_many(rig, 3)
    for _ in range(6):
        await rig.submit()
    answer, trips = await count_trips(rig, monkeypatch, keys)
    assert (len(answer.acked), len(answer.offers), trips) == (3, 3, 3)
    other = Rig(PostgresStore(pg_emptied), rig.now, rig.incarnations)
    await other.store.open()
    keys = [offer.task.key for offer in answer.offers]
    answer, trips = await count_trips(other, monkeypatch, keys)
    # And one for the kind of these jobs, which it has not seen yet.
    assert (len(answer.acked), len(answer.offers), trips) == (3, 3, 5)
    await other.store.close()


async def test_ends_of_a_host_that_is_gone_are_not_settled(rig: Rig, pg_emptied: str) -> None:
    """Nothing leaves it with a handover, which is made here. It lost its jobs, whatever it tells."""
    await rig.host("h2", slots=1)
    await rig.submit()
    (good,) = (await rig.sync("h2", takes=True)).offers
    keys = await take_many(rig)
    async with await psycopg.AsyncConnection.connect(pg_emptied) as conn:
        await conn.execute(b"update hosts set state = 'terminated' where id = 'h1'")
    syncs = [
        rig.make_sync(name, ended=[(key, OK) for key in told])
        for name, told in (("h1", keys), ("h2", [good.task.key]))
    ]
    gone, other = await rig.store.leases.sync_hosts(syncs, now=rig.now)
    assert (gone.status, gone.acked) == ("stale", ())
    assert other.acked == (good.task.key,)
    assert {(await rig.job(key.job_id)).state for key in keys} == {"reserved"}


async def read_kinds(dsn: str) -> list[tuple[str, bool]]:
    """Return the jobs of the queue, and whether their places say what they are."""
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        found = await conn.execute(
            "select job_id, kind is not null from ready_jobs order by priority desc, place"
        )
        return await found.fetchall()


@pytest.mark.parametrize("others", [0, 1, 2])
async def test_alike_jobs_are_taken_in_turn_with_others(
    rig: Rig, pg_emptied: str, others: int
) -> None:
    """Where their places say that all are alike their rows are not read, and otherwise all of them
    are."""
    specs: list[dict[str, Any]] = [{}, {}, {"preemptible": True}, {}, {"cpus": 2}]
    ids = [await rig.submit(**spec) for spec in (specs if others else specs[:2])]
    if others == 2:  # the first one is on its second attempt
        await rig.host("h2", slots=1)
        (first,) = (await rig.sync("h2", takes=True)).offers
        await rig.sync("h2", ended=[(first.task.key, fails(3))])
        await rig.complete(max_retries=3)
        await rig.release()
    said = dict(await read_kinds(pg_emptied))
    assert said[ids[0]] is (others < 2)
    assert said[ids[1]]
    assert not others or [said[job_id] for job_id in ids[2:]] == [False, True, True]
    await rig.host(slots=10)
    offers = (await rig.sync(takes=True)).offers
    assert [offer.task.key.job_id for offer in offers] == [*said]
    slots = {offer.task.key.job_id: offer.job.cpu_slots for offer in offers}
    assert not others or (slots[ids[3]], slots[ids[4]]) == (1, 2)
    attempts = {offer.task.key.job_id: offer.task.attempt for offer in offers}
    assert attempts[ids[0]] == (2 if others == 2 else 1)


async def test_few_jobs_have_rows_of_their_own(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handovers, "HANDED_FROM", MANY)
    await take_many(rig, MANY - 1)
    assert await count_rows(rig) == {
        "handovers": 0,
        "tasks": MANY - 1,
        "attempts": MANY - 1,
        "ready": 0,
    }


@pytest.mark.parametrize(
    "spec",
    [{"preemptible": True}, {"interactive": True}, {"gpus": 1}],
    ids=["preemptible", "interactive", "GPU"],
)
async def test_a_job_that_others_look_for_is_not_handed_over(
    rig: Rig, spec: dict[str, Any]
) -> None:
    await rig.host(slots=1, gpus=1)
    await rig.submit(**spec)
    assert len((await rig.sync(takes=True)).offers) == 1
    assert (await count_rows(rig))["handovers"] == 0


async def test_a_second_attempt_is_not_handed_over(rig: Rig) -> None:
    (key,) = await take_many(rig, 1)
    await rig.sync(ended=[(key, fails(3))])
    await rig.complete(max_retries=3)
    await rig.release()
    await rig.host("h2", slots=1)
    answer = await rig.sync("h2", takes=True)
    assert [offer.task.attempt for offer in answer.offers] == [2]
    assert (await count_rows(rig))["handovers"] == 0


async def test_a_room_counts_what_is_handed_over(rig: Rig) -> None:
    await rig.host(slots=2)
    for _ in range(3):
        await rig.submit()
    assert len((await rig.sync(takes=True)).offers) == 2
    assert (await count_rows(rig))["handovers"] == 1
    snapshot = await rig.store.admission.read_admission(10, now=rig.now)
    assert [host.free_cpu_slots for host in snapshot.hosts] == [0]
    assert len(snapshot.candidates) == 1
    assert (await rig.store.read_gauges(now=rig.now)).busy_cpu_slots == 2


@pytest.mark.parametrize("limit", ["quota_jobs", "share_cpu_slots"])
async def test_a_quota_and_a_share_count_what_was_handed_over_while_they_were_set(
    rig: Rig, pg_emptied: str, limit: str
) -> None:
    """The change looked for handovers before this one was committed, and the take read the settings
    before the change was."""
    await rig.host("h2", slots=4)
    await take_many(rig, 2)
    async with await psycopg.AsyncConnection.connect(pg_emptied) as conn:
        layer = f'{{"{limit}": 2}}'
        await conn.execute("insert into projects values ('default', %s, now())", (layer,))
        await conn.execute("update cluster set settings_rev = settings_rev + 1")
    assert (await count_rows(rig))["handovers"] == 1
    await rig.submit()
    snapshot = await rig.store.admission.read_admission(10, now=rig.now)
    assert (await count_rows(rig))["handovers"] == 1, "a round looks beside handovers"
    if limit == "quota_jobs":
        assert snapshot.candidates == (), "the quota is used up"
    else:
        assert snapshot.shares["default"].held_cpu_slots == 2


async def test_a_host_that_is_silent_keeps_nothing_handed_over(rig: Rig) -> None:
    await take_many(rig)
    rig.tick(handovers.HANDED_SECONDS / 2)
    await rig.store.leases.lapse_leases(rig.now, now=rig.now)
    assert (await count_rows(rig))["handovers"] == 1
    rig.tick(handovers.HANDED_SECONDS)
    await rig.store.leases.lapse_leases(rig.now, now=rig.now)
    assert await count_rows(rig) == {"handovers": 0, "tasks": MANY, "attempts": MANY, "ready": 0}


async def ask_for_locks(dsn: str) -> int:
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        row = await (
            await conn.execute(b"select count(*) from pg_locks where not granted")
        ).fetchone()
        return int(row[0]) if row else 0


async def hand_over_beside(
    rig: Rig, dsn: str, job_id: str, act: Callable[[], Coroutine[Any, Any, T]], host: str = "h1"
) -> T:
    """Return what `act` returns, which waits for a take of `job_id` by `host` that is committed only
    then."""
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        await conn.execute("select from heartbeats where host_id = %s for no key update", (host,))
        await conn.execute(b"select from queues where name = 'cpu' for share")
        await conn.execute("delete from ready_jobs where job_id = %s", (job_id,))
        await conn.execute(
            "insert into handovers values (nextval('event_batches_n_seq'), %s, %s, 'name', %s, 1, 0, %s, %s, %s)",
            (host, rig.incarnations[host], rig.now, [job_id], [300.0], ["cpu"]),
        )
        acting = asyncio.create_task(act())
        async with within(WAIT_SECONDS):
            while await ask_for_locks(dsn) < 1:
                assert not acting.done(), "it did not wait"
                await asyncio.sleep(0.01)
        await conn.commit()
        return await acting


async def test_a_cancel_that_meets_a_handover_on_its_way_drains_the_job(
    rig: Rig, pg_emptied: str
) -> None:
    """It has looked for handovers before this one was committed, so the job's place tells it."""
    await rig.host(slots=1)
    job_id = await rig.submit()
    cancelled = await hand_over_beside(
        rig, pg_emptied, job_id, lambda: rig.store.jobs.cancel_job(job_id, "enough", now=rig.now)
    )
    assert cancelled.state == "draining"
    key = TaskKey(job_id, 0, 1)
    assert [stop.key for stop in (await rig.sync(live=[key])).preempts] == [key]


@pytest.mark.parametrize("earlier", [False, True])
async def test_a_cancel_of_many_does_not_run_again_for_what_hosts_take_meanwhile(
    rig: Rig, pg_emptied: str, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    """It would meet the next take then, time after time: what was taken is left for a transaction of
    its own. earlier: something is handed over when it begins, which does not concern it."""
    monkeypatch.setattr(session, "CONFLICT_TRIES", 1)
    await rig.host(slots=1)
    await rig.host("h2", slots=1)
    if earlier:
        await rig.submit()
        assert len((await rig.sync("h2", takes=True)).offers) == 1
    taken, *others = [await rig.submit() for _ in range(3)]
    done = await hand_over_beside(
        rig,
        pg_emptied,
        taken,
        lambda: rig.store.jobs.cancel_jobs([taken, *others], "enough", now=rig.now),
    )
    assert {job_id: job.state for job_id, job in done.jobs.items()} == {
        taken: "draining",
        **dict.fromkeys(others, "cancelled"),
    }
    assert (await count_rows(rig))["handovers"] == earlier
    key = TaskKey(taken, 0, 1)
    assert [stop.key for stop in (await rig.sync(live=[key])).preempts] == [key]


@pytest.mark.parametrize("way", ["pause", "drain", "terminate", "register"])
async def test_what_ends_the_work_of_a_host_or_queue_meets_a_handover_on_its_way(
    rig: Rig, pg_emptied: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks for work when it has its lock, for which it waited until the take was committed. It
    is not run again, because it would wait for the next take then, time after time."""
    monkeypatch.setattr(session, "CONFLICT_TRIES", 1)
    await rig.host(slots=1)
    job_id = await rig.submit()
    acts: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "pause": lambda: rig.store.settings.pause_queue("cpu", "enough", hard=True, now=rig.now),
        "drain": lambda: rig.store.hosts.move_host("h1", "drain", "enough", hard=True, now=rig.now),
        "terminate": lambda: rig.store.hosts.move_host("h1", "terminate", "gone", now=rig.now),
        "register": lambda: rig.host(slots=1),
    }
    await hand_over_beside(rig, pg_emptied, job_id, acts[way])
    assert (await count_rows(rig))["handovers"] == 0
    assert (await rig.job(job_id)).state == "draining"


@pytest.mark.parametrize("way", ["drain", "free"])
async def test_a_rented_host_that_is_just_handed_a_job_is_not_idle(
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
    assert not await hand_over_beside(rig, pg_emptied, job_id, acts[way], host)
    assert (await rig.store.hosts.get_host(host)).state == "active"
    assert (await rig.job(job_id)).state == "reserved"


async def test_a_list_by_state_sees_what_is_handed_over(rig: Rig) -> None:
    (key,) = await take_many(rig, 1)
    assert await rig.store.jobs.list_jobs(JobFilter(states=("queued",))) == []
    found = await rig.store.jobs.list_jobs(JobFilter(states=("reserved",)))
    assert [job.id for job in found] == [key.job_id]
