"""The ledger on PostgreSQL: its rows follow from the database alone, so a controller that dies at any
moment loses no second and counts none twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from holdfast.core.causes import Watchdog
from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.ids import TaskKey
from holdfast.core.ledger.close_minutes import close_span
from holdfast.core.ledger.tally import Tally
from holdfast.core.ledger.values import LedgerName
from holdfast.core.states import HostEvent, InstanceEvent
from holdfast.errors import Stale, ValidationError
from holdfast.store.postgres.ledger import ledger
from holdfast.store.postgres.store import PostgresStore
from tests.store.postgres.test_fleet import A100, ask, intend
from tests.store.rig import OK, START, STOPPED, Rig, fails

MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
async def rig(pg_emptied: str) -> AsyncIterator[Rig]:
    store = PostgresStore(pg_emptied)
    await store.open()
    yield Rig(store)
    await store.close()


async def close(rig: Rig, *, most: int = 60) -> int:
    """Close every minute that is over; return how many spans that took."""
    for n in range(1000):
        facts = await rig.store.ledger.read_span(most, now=rig.now)
        if facts is None:
            if n:
                return n
            if await rig.store.ledger.read_span(most, now=rig.now) is None:  # the cursor was made
                return n
            continue
        await rig.store.ledger.write_ledger(facts, close_span(facts))
    raise AssertionError("the ledger never caught up")


async def sums(rig: Rig, *by: str, unit: str = "gpu", **more: Any) -> dict[Any, dict[str, int]]:
    found = await rig.store.ledger.read_sums(
        START - timedelta(days=1), rig.now + timedelta(days=1), by=by, unit=unit, **more
    )
    return {s.key if len(by) > 1 else "".join(s.key): {str(n): ms for n, ms in s.ms.items()} for s in found}  # fmt: skip


async def tell(rig: Rig, key: TaskKey, tally: Tally, host: str = "h1") -> None:
    sync = rig.make_sync(host, live=(key,), started=(key,), tallies=((key, tally),))
    await rig.store.leases.sync_hosts([sync], now=rig.now)


async def test_each_second_of_a_host_has_a_name(rig: Rig) -> None:
    await rig.host("h1", gpus=2)
    await close(rig)
    rig.tick(30)
    await rig.sync()
    job, key = await rig.running(gpus=1, labels={"team": "red"})
    rig.tick(60)
    told = Tally(
        ms={"setting_up": 10_000, "loading": 20_000, "kept": 30_000}, now="kept", beaten=True
    )
    await tell(rig, key, told)
    rig.tick(45)
    end = msgspec.structs.replace(told, ms={**told.ms, "kept": 60_000, "checkpointing": 15_000})
    await rig.sync(ended=[(key, msgspec.structs.replace(OK, tally=end))])
    rig.tick(75)
    await close(rig)
    found = await sums(rig, "job")
    assert found == {
        "": {"unused": 180_000 * 2 - 105_000},
        job: {"setting_up": 10_000, "loading": 20_000, "kept": 60_000, "checkpointing": 15_000},
    }
    assert (await sums(rig, "label:team", "host"))["red", "name-h1"]["kept"] == 60_000
    assert await sums(rig, "job", unit="cpu") == {"": {"unused": 180_000 * 8}}
    assert await sums(rig, "job", filters={"label:team": "blue"}) == {}
    with pytest.raises(ValidationError, match="no field 'colour'"):
        await sums(rig, "colour")


async def test_rows_of_a_running_job_are_provisional_until_its_end(rig: Rig) -> None:
    await rig.host("h1", gpus=1)
    await close(rig)
    job, key = await rig.running(gpus=1)
    for ended in (False, True):
        rig.tick(120)
        if ended:
            await rig.sync(ended=[(key, fails())])
            await rig.complete(max_retries=0)
            rig.tick(60)
        await close(rig)
        found = await rig.store.ledger.read_sums(START, rig.now, by=["job"])
        assert [s.provisional for s in found if s.key == (job,)] == [not ended]
        gauges = await rig.store.read_gauges(now=rig.now)
        assert bool(gauges.open_ms) is not ended
        told = Counter(gauges.ledger_ms) + Counter(gauges.open_ms)  # an end moves it, and no more
        assert {n: ms for (unit, n), ms in told.items() if unit == "gpu"} == (
            (await sums(rig, "pool"))[""]
        )
    assert sum((await sums(rig, "job"))[job].values()) == 240_000


async def test_the_silence_before_a_trip_turns_from_work_into_a_stall(rig: Rig) -> None:
    """In minutes, hours and days alike, though these minutes were closed as work."""
    await rig.host("h1", gpus=2)
    await close(rig)
    job, key = await rig.running(gpus=2)
    for minute in range(1, 6):
        rig.tick(60)
        ms = {"loading": 10_000, "kept": minute * 60_000 - 10_000}
        await tell(rig, key, Tally(ms=ms, now="kept", beaten=True))
        await close(rig)
    rig.tick(10)
    trip = Trip(watchdog=Watchdog.STALL, exit_code=75, reason="silent")
    ms = {"loading": 10_000, "kept": 90_000, "stalled": 210_000}
    tally = Tally(ms=ms, beaten=True, now="draining")
    await rig.sync(ended=[(key, TaskFacts(signal=9, trip=trip, tally=tally))])
    await rig.complete()
    rig.tick(60)
    await close(rig)
    assert (await sums(rig, "job"))[job] == {n: 2 * m for n, m in ms.items()}
    by_minute = await sums(rig, "time", filters={"job": job}, step="minute")
    assert by_minute["2026-03-01T12:04Z"] == {"stalled": 120_000}
    for step in ("hour", "day"):
        (whole,) = (await sums(rig, "time", filters={"job": job}, step=step)).values()
        assert whole == {n: 2 * m for n, m in ms.items()}


async def test_steps_that_the_next_attempt_does_again_turn_from_kept_into_lost(rig: Rig) -> None:
    await rig.host("h1", gpus=1)
    await close(rig)
    job, key = await rig.running(gpus=1, cpus=0)
    told = Tally(ms={"kept": 100_000}, now="kept", beaten=True, first_step=1, step=100)
    rig.tick(100)
    await tell(rig, key, told)
    await rig.sync(ended=[(key, msgspec.structs.replace(fails(), tally=told))])
    await rig.complete(max_retries=3)
    rig.tick(60)
    await close(rig)
    assert (await sums(rig, "job"))[job] == {"kept": 100_000}
    await rig.sync()
    await rig.release()
    assert await rig.admit() == [job]
    key = await rig.key(job)
    await rig.sync()
    rig.tick(60)
    await tell(rig, key, Tally(ms={"loading": 60_000}, beaten=True, first_step=61, step=61))
    rig.tick(60)
    await close(rig)
    found = (await sums(rig, "job"))[job]
    assert (found["kept"], found["lost"]) == (60_000, 40_000)
    (losses,) = await rig.store.ledger.read_losses(START, rig.now)
    assert [(c.cause, c.ends, c.lost_ms) for c in losses.lost] == [("nonzero_exit", 1, 40_000)]
    assert (losses.job_id, losses.devices) == (job, 1)
    assert await rig.store.ledger.read_losses(START, rig.now, unit="cpu") == [], "it held none"


async def test_unleased_time_is_named_by_the_state_of_its_host(rig: Rig) -> None:
    await rig.host("h1", gpus=1, slots=0)
    await close(rig)
    for event in (HostEvent.QUARANTINE, HostEvent.RELEASE, HostEvent.DRAIN):
        rig.tick(40)
        await rig.store.hosts.move_host("h1", event, "a test", now=rig.now)
    rig.tick(60)
    await close(rig)
    assert await sums(rig) == {"": {"unused": 80_000, "unfit": 40_000, "draining": 60_000}}


async def test_a_silent_host_is_unfit_where_the_controller_would_have_heard_it(rig: Rig) -> None:
    await rig.host("h1", gpus=1, slots=0)
    await close(rig)
    for minutes, heard in ((3, None), (3, rig.now)):
        rig.tick(60 * minutes)
        facts = await rig.store.ledger.read_span(hears_since=heard, now=rig.now)
        await rig.store.ledger.write_ledger(facts, close_span(facts))
    assert await sums(rig) == {"": {"unused": 180_000, "unfit": 180_000}}


async def test_a_rented_machine_is_starting_from_the_moment_at_which_it_was_made(rig: Rig) -> None:
    await rig.host("h1", slots=1)
    await close(rig)
    rig.tick(10)
    await intend(rig, "host-aaaaaaaa")
    rig.tick(10)  # the provider has not answered yet: nothing is paid
    await ask(rig, "host-aaaaaaaa")
    assert await rig.store.fleet.note_made("host-aaaaaaaa", "m-1", now=rig.now) is not None
    rig.tick(160)
    await close(rig)
    assert await sums(rig, "pool") == {"p": {"starting": 160_000 * A100.gpus}}


async def test_a_rented_machine_has_a_name_until_its_provider_says_that_it_is_gone(
    rig: Rig,
) -> None:
    """Its host was ended before, and what was paid meanwhile had no name."""
    await rig.host("h1", slots=1)
    await intend(rig, "host-aaaaaaaa")
    await ask(rig, "host-aaaaaaaa")
    assert await rig.store.fleet.note_made("host-aaaaaaaa", "m-1", now=rig.now) is not None
    await close(rig)
    rig.tick(30)
    assert await rig.store.fleet.want_end("host-aaaaaaaa", "its pool shrinks", now=rig.now)
    assert await rig.store.fleet.free_host("host-aaaaaaaa", "its pool shrinks", now=rig.now) == []
    rig.tick(50)
    assert await rig.store.fleet.note_gone(
        "host-aaaaaaaa", InstanceEvent.VANISH, "it is gone", now=rig.now
    )
    rig.tick(80)
    await close(rig)
    paid = {"starting": 30_000 * A100.gpus, "draining": 50_000 * A100.gpus}
    assert await sums(rig, "pool") == {"p": paid}


async def test_the_last_state_of_a_host_goes_once_its_machine_is_long_gone(rig: Rig) -> None:
    """It had stayed for ever, and each minute read the last states of all hosts there ever were."""
    await rig.host("h1", slots=1)
    await close(rig)
    for host, ref in (("host-aaaaaaaa", "m-1"), ("host-bbbbbbbb", "m-2")):
        await intend(rig, host)
        await ask(rig, host)
        assert await rig.store.fleet.note_made(host, ref, now=rig.now) is not None
        assert await rig.store.fleet.want_end(host, "its pool shrinks", now=rig.now)
        assert await rig.store.fleet.free_host(host, "its pool shrinks", now=rig.now) == []
    rig.tick(60)
    gone = await rig.store.fleet.note_gone(
        "host-aaaaaaaa", InstanceEvent.VANISH, "it is gone", now=rig.now
    )
    assert gone
    rig.tick(3 * 86_400)
    while await close(rig):
        pass
    await rig.store.ledger.prune_ledger(1.0, 2.0, now=rig.now)
    found = await rig.store.session.single(
        lambda tx: tx.rows("read_host_times", since=EPOCH, until=rig.now, heard_until=None)
    )
    assert {row["host_id"] for row in found} == {"h1", "host-bbbbbbbb"}


async def test_a_member_that_is_replaced_is_counted_on_each_host(rig: Rig) -> None:
    job, keys = await rig.supervised(gpus=0)
    await close(rig)
    rig.tick(50)
    await rig.sync("h3", live=[], ended=[(keys[2], fails())])
    rig.tick(10)
    await rig.replace()
    rig.tick(10)
    await rig.host("h4", slots=1)
    await rig.admit()
    rig.tick(50)
    await close(rig)
    found = await sums(rig, "host", "job", unit="cpu")
    held = {host: sum(ms.values()) for (host, of), ms in found.items() if of == job}
    assert held == {"name-h1": 120_000, "name-h2": 120_000, "name-h3": 50_000, "name-h4": 50_000}


async def test_thousands_of_brief_jobs_are_put_together(rig: Rig, monkeypatch: Any) -> None:
    monkeypatch.setattr(ledger, "MOST_BRIEF", 2)
    await rig.host("h1")
    await close(rig)
    for _ in range(3):
        _, key = await rig.running(labels={"who": "ann"})
        rig.tick(1.5)
        await rig.sync(ended=[(key, OK)])
    rig.tick(60)
    await close(rig)
    found = await sums(rig, "job", "label:who", unit="cpu")
    assert found["", "ann"] == {"unmeasured_busy": 4_500}
    assert sum(sum(ms.values()) for ms in found.values()) == 60_000 * 8


async def test_fewer_minutes_are_closed_at_once_where_many_leases_are_held(
    rig: Rig, monkeypatch: Any
) -> None:
    monkeypatch.setattr(ledger, "MOST_LEASE_MINUTES", 6)
    await rig.host("h1", gpus=2)
    await close(rig)
    for _ in range(2):
        await rig.running(gpus=1)
    rig.tick(600)
    found = await rig.store.ledger.read_span(now=rig.now)
    assert (found.until_ms - found.since_ms) // 60_000 == 3
    assert await close(rig) == 4


async def test_minutes_are_kept_in_their_hour_also_where_a_name_comes_back(rig: Rig) -> None:
    """Later minutes are put behind those of their name, with nothing between; a correction reaches
    any of them."""
    await rig.host("h1", gpus=1, slots=0)
    await close(rig)
    for event in (HostEvent.QUARANTINE, HostEvent.RELEASE, HostEvent.QUARANTINE):
        rig.tick(120)
        await rig.store.hosts.move_host("h1", event, "a test", now=rig.now)
        await close(rig)
    rig.tick(60)
    await close(rig)
    found = await sums(rig, "time", step="minute")
    names = [next(iter(ms)) for _, ms in sorted(found.items())]
    assert names == ["unused", "unused", "unfit", "unfit", "unused", "unused", "unfit"]
    assert {ms for each in found.values() for ms in each.values()} == {60_000}
    (late,) = await rig.store.ledger.read_sums(START + 3 * MINUTE, START + 5 * MINUTE, by=[])
    assert late.ms == {LedgerName.UNFIT: 60_000, LedgerName.UNUSED: 60_000}


async def test_old_minutes_and_hours_are_deleted_and_the_days_keep_the_sum(rig: Rig) -> None:
    await rig.host("h1", gpus=1, slots=0)
    await close(rig)
    for _ in range(2):
        _, key = await rig.running(gpus=1, labels={"team": "red"})
        rig.tick(7)
        await rig.sync(ended=[(key, OK)])
    rig.tick(4 * 86_400 - 14)
    await close(rig, most=1440)
    before = await sums(rig)
    assert len(await sums(rig, "job")) == 3
    assert await rig.store.ledger.prune_ledger(1.0, 2.0, now=rig.now) > 72 + 36
    assert await sums(rig) == before
    assert sum(before[""].values()) == 4 * 86_400_000
    assert await sums(rig, "job", "label:team") == {  # the day's jobs are no longer told apart
        ("", ""): {"unused": 4 * 86_400_000 - 14_000},
        ("", "red"): {"unmeasured_busy": 14_000},
    }
    since = START + timedelta(days=3, hours=3, minutes=30)
    (late,) = await rig.store.ledger.read_sums(since, rig.now, by=[])
    assert late.ms == {LedgerName.UNUSED: int((rig.now - since).total_seconds() * 1000)}


class Walk:
    """A random day of a small cluster, and what it must add up to, kept beside the store."""

    def __init__(self, rig: Rig, chance: random.Random) -> None:
        self.rig, self.chance = rig, chance
        self.live: dict[TaskKey, tuple[str, datetime]] = {}
        self.leased: Counter[str] = Counter()
        self.hosts: dict[str, datetime] = {}
        self.jobs: set[str] = set()

    async def step(self) -> None:
        rig, roll = self.rig, self.chance
        rig.tick(roll.choice((0.001, 1.7, 13.37, 41, 97.003)))
        what = roll.choice(
            ("submit", "gang", "admit", "end", "end", "tell", "tell", "fail", "move")
        )
        if what in ("submit", "gang"):
            more = {"tasks": 2} if what == "gang" else {}
            self.jobs.add(await rig.submit(gpus=roll.randrange(2), on_partial="restart", **more))
        elif what == "admit":
            await self.admit()
        elif what == "tell":
            for key, (host, _) in list(self.live.items()):
                if roll.random() < 0.6:
                    await tell(rig, key, self.invent(), host)
        elif what in ("end", "fail") and self.live:
            await self.end(roll.choice(list(self.live)), good=what == "end")
        elif what == "move":
            event = roll.choice((HostEvent.QUARANTINE, HostEvent.RELEASE))
            try:
                await rig.store.hosts.move_host("h2", event, "a test", now=rig.now)
            except Exception:
                return

    def invent(self) -> Tally:
        names = [*(str(n) for n in LedgerName), "made_up"]
        ms = {self.chance.choice(names): self.chance.randrange(200_000) for _ in range(3)}
        step = self.chance.randrange(1, 100)
        return Tally(ms=ms, now=self.chance.choice(names), beaten=self.chance.random() < 0.7,
                     first_step=self.chance.randrange(1, step + 1), step=step)  # fmt: skip

    async def admit(self) -> None:
        await self.rig.release()
        for host in self.hosts:  # a silent host is given nothing
            await self.rig.sync(host, live=[k for k, (of, _) in self.live.items() if of == host])
        for job_id in await self.rig.admit():
            for task in await self.rig.store.jobs.list_tasks(job_id):
                self.live[task.key] = (str(task.host_id), self.rig.now)
        for turn in ("claim", "start"):
            for host in self.hosts:
                mine = [key for key, (of, _) in self.live.items() if of == host]
                found = await self.rig.sync(host, live=mine if turn == "claim" else ())
                claimed = [(c.key, 0 if c.key.rank else 4711) for c in found.claims]
                if claimed:
                    await self.rig.sync(host, claimed=claimed)
                for offer in found.offers:
                    await self.rig.sync(host, live=[offer.task.key], started=[offer.task.key])

    async def end(self, key: TaskKey, *, good: bool) -> None:
        host = self.live[key][0]
        facts = OK if good else fails()
        if self.chance.random() < 0.6:
            facts = msgspec.structs.replace(facts, tally=self.invent())
        await self.rig.sync(host, ended=[(key, facts)])
        self.note(key)
        if not good:
            others = [k for k in self.live if k.job_id == key.job_id]
            for other in others:
                await self.rig.sync(self.live[other][0], ended=[(other, STOPPED)])
                self.note(other)
            await self.rig.complete(max_retries=2)

    def note(self, key: TaskKey) -> None:
        _, begun = self.live.pop(key)
        self.leased[key.job_id] += round((self.rig.now - begun).total_seconds() * 1000)

    async def close_and_die(self, dsn: str) -> None:
        """Close minutes with a controller that dies at one of the moments at which it can."""
        store = self.rig.store.ledger
        facts = await store.read_span(self.chance.choice((1, 3, 60)), now=self.rig.now)
        if facts is None:
            return
        how = self.chance.randrange(4)
        if how == 0:
            return  # it read, and died
        rows = close_span(facts)
        if how == 1:  # it dies when all is written but the commit
            broken = msgspec.structs.replace(rows, forgotten=[TaskKey("x", 2**40, 1)])
            with pytest.raises(Exception, match=r"integer|range|int4"):
                await store.write_ledger(facts, broken)
            return
        await store.write_ledger(facts, rows)
        if how == 2:  # the commit's answer was lost, and it tries again
            with pytest.raises(Stale):
                await store.write_ledger(facts, rows)
        else:  # another replica leads
            await self.rig.store.close()
            self.rig.store = PostgresStore(dsn)
            await self.rig.store.open()


@pytest.mark.parametrize("seed", range(3))
async def test_a_controller_that_dies_at_any_moment_loses_no_second_and_counts_none_twice(
    rig: Rig, pg_emptied: str, seed: int
) -> None:
    """LEDGER-1 and LEDGER-2, over random jobs, tallies, failures and deaths of the leader."""
    walk = Walk(rig, random.Random(seed))
    for host in ("h1", "h2"):
        await rig.host(host, gpus=2)
        walk.hosts[host] = rig.now
    await close(rig)
    for _ in range(70):
        await walk.step()
        if walk.chance.random() < 0.3:
            await walk.close_and_die(pg_emptied)
    for key in list(walk.live):
        if key in walk.live:
            await walk.end(key, good=walk.chance.random() < 0.5)
    rig.now = rig.now.replace(second=0, microsecond=0) + 2 * MINUTE
    await close(rig)
    found: Counter[str] = Counter()
    for unit in ("gpu", "cpu"):  # a job has GPUs or CPU slots
        for job, ms in (await sums(rig, "job", unit=unit)).items():
            found[job] += sum(ms.values())
    assert {job: ms for job, ms in found.items() if job} == +walk.leased
    assert sum(walk.leased.values()) > 60_000
    whole = round((rig.now - START).total_seconds() * 1000)
    for unit, devices in (("gpu", 2), ("cpu", 8)):
        by_host = await sums(rig, "host", unit=unit)
        assert {host: sum(ms.values()) for host, ms in by_host.items()} == {
            f"name-{host}": whole * devices for host in walk.hosts
        }
    await check_steps(pg_emptied)
    await rig.store.close()


async def check_steps(dsn: str) -> None:
    """Minutes, hours and days sum to the same, for every subject and name."""
    conn = await psycopg.AsyncConnection.connect(dsn)
    found = []
    for table, ms in (
        ("ledger_hours h cross join lateral minutes_of(h) m", "m.ms"),
        ("ledger_hours", "ms"),
        ("ledger_days", "ms"),
    ):
        text = f"select subject, name, sum({ms})::bigint from {table} group by 1, 2 having sum({ms}) > 0"
        found.append(sorted(await (await conn.execute(text)).fetchall()))
    await conn.close()
    assert found[0] == found[1] == found[2]
