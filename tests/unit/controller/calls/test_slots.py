"""Which executors are asked to leave, as a replica reads it from its store: LEAVE-1 and LEAVE-4."""

from __future__ import annotations

from holdfast.controller.runtime.calls.slots import WantedSlots
from holdfast.core.calls.executors import make_executor_spec
from holdfast.core.calls.values import Family, FunctionSpec
from holdfast.moves.values import NewJob
from tests.store.rig import Rig

ONE, TWO = Family(app="one", queue="cpu"), Family(app="two", queue="cpu")


async def begin(rig: Rig) -> WantedSlots:
    """One slot, held by an idle executor that was started ahead for one of two apps."""
    await rig.host("h1", slots=1, labels={"app/one": "yes", "app/two": "yes"})
    spec = make_executor_spec(ONE, ahead=True)
    await rig.store.jobs.submit_jobs([NewJob(id="e1", spec=spec, queue="cpu")], now=rig.now)
    assert await rig.admit() == ["e1"]
    key = await rig.key("e1")
    await rig.sync()
    await rig.sync(live=[key], started=[key])
    return WantedSlots(rig.store, lambda: rig.now.timestamp())


async def test_an_executor_submitted_ahead_claims_a_slot_once_calls_wait_for_it(
    told_rig: Rig,
) -> None:
    """LEAVE-1: not before, because nothing waits for it."""

    async def run() -> None:
        rig = told_rig
        slots = await begin(rig)
        spec = make_executor_spec(TWO, ahead=True)
        await rig.store.jobs.submit_jobs([NewJob(id="e2", spec=spec, queue="cpu")], now=rig.now)
        host, mine = await rig.store.hosts.get_host("h1"), make_executor_spec(ONE, ahead=True)
        rig.tick(60)
        await slots.refresh()
        assert not slots.gives_way(mine, host, idle=True)
        await rig.store.calls.create_set(
            "s1", FunctionSpec(function="two:f"), "cpu", count=1, args=["{}"], now=rig.now
        )
        for seconds, leaves in ((2.5, False), (3.0, True)):
            rig.tick(seconds)
            await slots.refresh()
            assert slots.gives_way(mine, host, idle=True) is leaves

    await run()


async def test_an_idle_executor_leaves_for_a_job_that_a_limit_holds(told_rig: Rig) -> None:
    """LEAVE-4: admission does not even see it; one of a paused queue waits for something else."""

    async def run() -> None:
        rig = told_rig
        slots = await begin(rig)
        await rig.host("h2", slots=4)
        await rig.store.settings.put_queue("cpu", {"max_running": 1}, now=rig.now)
        job_id = await rig.submit()
        assert await rig.admit() == []
        mine = make_executor_spec(ONE, ahead=True)
        await slots.refresh_jobs()
        assert slots.yields_to_job(mine, "h1")
        assert not slots.yields_to_job(mine, "h1"), "one is enough"
        await rig.store.jobs.cancel_job(job_id, "", now=rig.now)
        rig.tick(20)
        await slots.refresh_jobs()
        assert not slots.yields_to_job(mine, "h1")

    await run()
