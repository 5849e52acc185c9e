"""What only the store on PostgreSQL does: leases."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from holdfast.core.causes import Cause
from holdfast.core.lease import GAP_SECONDS
from holdfast.moves.values import JobFilter
from holdfast.store.postgres.sync import lapses
from tests.store.rig import START, Rig
from tests.waits import within


async def test_secrets_reach_the_host_and_nobody_else(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit(secrets={"TOKEN": "hush-hush"})
    await rig.admit()
    (offer,) = (await rig.sync()).offers
    assert offer.secrets == {"TOKEN": "hush-hush"}
    assert offer.job.spec.secrets == {"TOKEN": ""}
    shown = [
        await rig.job(job_id),
        await rig.store.jobs.list_jobs(JobFilter()),
        await rig.events(),
        offer.job,
    ]
    assert "hush-hush" not in repr(shown)


async def test_a_clock_that_was_set_back_leaves_nothing_in_the_future(rig: Rig) -> None:
    """LEASE-5: what a dead host held is free a lease after the step, and not when the old time
    comes again."""
    await rig.host()
    _, held = await rig.running()
    stopping, other = await rig.running()
    waits = await rig.submit(tasks=2)
    rig.tick(20)
    await rig.sync(live=[held, other])
    assert await rig.admit() == [waits]
    await rig.store.jobs.drain_job(stopping, Cause.PREEMPTED, "make room", now=rig.now)
    rig.tick(-7200)
    since = rig.now
    await rig.store.leases.settle_clock(now=rig.now)
    assert [task.lease_until for task in await rig.store.jobs.list_tasks(held.job_id)] == [
        rig.now + timedelta(seconds=300)
    ]
    assert [found.seconds for found in await rig.store.admission.list_reserved(now=rig.now)] == [
        0.0
    ]
    assert (await rig.job(stopping)).drain_since == rig.now
    assert (await rig.store.hosts.get_host("h1")).heartbeat_at == rig.now
    before = await rig.store.jobs.list_tasks(held.job_id)
    rig.tick(10)
    await rig.store.leases.settle_clock(now=rig.now)
    assert await rig.store.jobs.list_tasks(held.job_id) == before, "what is not in the future stays"
    assert await rig.store.leases.lapse_leases(since, now=rig.now) == []
    rig.tick(310)
    lapsed = await rig.store.leases.lapse_leases(since, now=rig.now)
    assert {held.job_id, stopping} <= set(lapsed)


TTL, MARGIN = 300.0, 15.0


async def _stamp_for(rig: Rig, seconds: float, *others: Rig) -> None:
    """Stamp renewals every other second for so long, at each of several servers in turn."""
    servers = (rig, *others)
    for n in range(int(seconds / 2)):
        await servers[n % len(servers)].store.leases.stamp_renewals(now=rig.tick(2))


async def _lapse(rig: Rig) -> list[str]:
    found: list[str] = await rig.store.leases.lapse_leases(rig.now - timedelta(days=1), now=rig.now)
    return found


async def test_the_silence_of_all_hosts_is_no_gap(rig: Rig) -> None:
    """LEASE-6: the only host of a cluster, and all of its hosts at once, lapse after TTL and
    margin, because renewals could be written all along."""
    jobs = set()
    for host in ("h1", "h2"):
        await rig.host(host, slots=1)
        job_id, _ = await rig.running(host=host)
        jobs.add(job_id)
    await _stamp_for(rig, TTL + MARGIN - 1)
    assert await _lapse(rig) == []
    await _stamp_for(rig, 2)
    assert set(await _lapse(rig)) == jobs


async def test_a_gap_counts_for_no_lease_at_any_server(rigs: tuple[Rig, Rig]) -> None:
    """LEASE-6: a time in which no server could write a renewal is known to each of them, and to
    one that has only begun."""
    rig, other = rigs
    await rig.host()
    job_id, key = await rig.running()
    await _stamp_for(rig, 4, other)
    at = rig.tick(2 * TTL)
    assert await _lapse(rig) == [], "no stamp came since: the gap is not over"
    assert await other.store.leases.stamp_renewals(now=at) == (at, at)
    other.now = rig.now
    assert await _lapse(other) == []
    await _stamp_for(rig, TTL + MARGIN - 4 - GAP_SECONDS - 2, other)
    assert await _lapse(rig) == []
    assert (await rig.sync(live=[key])).renewed == ((key, TTL),), "its host is heard again"
    await _stamp_for(rig, TTL + MARGIN, other)
    assert await _lapse(rig) == []
    await _stamp_for(rig, 2, other)
    assert await _lapse(rig) == [job_id], "a gap before the last renewal prolongs no lease"


async def test_a_leader_that_is_always_slow_keeps_no_lease_for_ever(rig: Rig) -> None:
    await rig.host()
    job_id, _ = await rig.running()
    while not (lapsed := await _lapse(rig)):
        await rig.store.leases.stamp_renewals(now=rig.tick(5))
    assert lapsed == [job_id]
    share = GAP_SECONDS / 5  # of the time, which is no gap
    assert TTL + MARGIN <= (rig.now - START).total_seconds() <= (TTL + MARGIN) / share + 5


async def test_a_step_of_the_clock_leaves_no_gap_in_the_future(rig: Rig) -> None:
    """LEASE-5: after the clock was set forward and back again, a lease ends in its time."""
    await rig.host()
    job_id, _ = await rig.running()
    await _stamp_for(rig, 4)
    rig.tick(7200)
    await rig.store.leases.stamp_renewals(now=rig.now)
    rig.tick(-7200)
    await rig.store.leases.stamp_renewals(now=rig.now)
    await rig.store.leases.settle_clock(now=rig.now)
    await _stamp_for(rig, TTL + MARGIN + 2)
    assert await _lapse(rig) == [job_id]


@pytest.mark.parametrize("table", ["heartbeats", "hosts", "tasks", "jobs", "attempts", "events"])
async def test_what_holds_renewals_up_holds_the_stamp_up(rig: Rig, table: str) -> None:
    await rig.store.leases.stamp_renewals()
    async with await rig.store.session.connect() as other, other.transaction():
        await other.execute(f"lock table {table} in access exclusive mode".encode())
        stamp = asyncio.create_task(rig.store.leases.stamp_renewals())
        await _until_one_waits(rig)
        assert not stamp.done()
    at, _ = await stamp
    rows = await rig.store.session.rows("read_spells", now=None)
    assert [row["until"] for row in rows] == [at], "the clock is read after the locks"


async def test_a_lapse_that_waited_for_its_locks_decides_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewals that waited for the same locks come first; a look without a wait decides."""
    monkeypatch.setattr(lapses, "LOCKS_SECONDS", 0.0)
    await rig.host()
    job_id, _ = await rig.running()  # long ago, by the database's clock
    async with await rig.store.session.connect() as other, other.transaction():
        await other.execute(b"select id from jobs for update")
        lapse = asyncio.create_task(rig.store.leases.lapse_leases(START))
        await _until_one_waits(rig)
    assert await lapse == []
    monkeypatch.setattr(lapses, "LOCKS_SECONDS", 60.0)
    assert await rig.store.leases.lapse_leases(START) == [job_id]


async def _until_one_waits(rig: Rig) -> None:
    async with within(10), await rig.store.session.connect() as look:
        while True:
            found = await look.execute("select from pg_locks where not granted")
            if await found.fetchone() is not None:
                return
