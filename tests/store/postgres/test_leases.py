"""What only the store on PostgreSQL does: leases."""

from __future__ import annotations

from datetime import timedelta

from holdfast.core.causes import Cause
from holdfast.moves.values import JobFilter
from tests.store.rig import Rig


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
