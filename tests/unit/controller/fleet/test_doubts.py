"""A provider is asked at once for a host that fell silent with work (ASK-1)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast.controller.loops.fleet import FleetLoop
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.moves.values import HostSync, NewJob
from tests.store.pg_fixture import MakeStore
from tests.unit.controller.fleet.world import POOL, World, make_world

SLOW = msgspec.structs.replace(POOL, poll_seconds=3600.0)


@pytest.fixture
async def world(make_store: MakeStore) -> World:
    """A host of the pool runs a job under a lease of five minutes; the next poll is an hour away."""
    made = await make_world(make_store, SLOW)
    await made.make_pool()
    for _ in range(3):
        await made.cycle()
    (host,) = await made.active()
    job = NewJob(id="0" * 20, spec=JobSpec(argv=("true",)), queue="cpu")
    await made.store.jobs.submit_jobs([job], now=made.now)
    taker = HostSync(host_id=host, incarnation="incarnation-m-1", takes=True)
    settings = await made.controller.settings.current()
    assert settings.take_terms is not None
    await made.store.leases.sync_hosts([taker], terms=settings.take_terms, now=made.now)
    assert (await made.store.jobs.get_job("0" * 20)).state is JobState.RESERVED
    return made


async def turn(loop: FleetLoop) -> int:
    """One turn of the loop and the cycles that it began; how often the provider was asked."""
    provider = loop._controller.open_provider("scripted", {}, "")
    before = provider.calls.count("list")
    await loop.run_once()
    await asyncio.gather(*loop._running.values())
    found: int = provider.calls.count("list") - before
    return found


async def state(world: World) -> JobState:
    return (await world.store.jobs.get_job("0" * 20)).state


async def test_a_silent_host_with_work_has_its_provider_asked_and_gone_frees_the_work(
    world: World,
) -> None:
    loop = FleetLoop(world.controller)
    await turn(loop)  # the poll that is due at a start
    world.tick(5)
    assert await turn(loop) == 0, "two syncs may be late"
    world.tick(5)
    assert await turn(loop) == 1
    assert await state(world) is JobState.RESERVED, "its machine is there: the lease decides"
    world.tick(5)
    assert await turn(loop) == 0, "it was asked 5 s ago"
    world.provider.end("m-1", "its node failed")
    world.tick(6)
    assert await turn(loop) == 1
    assert await state(world) is not JobState.RESERVED
    await loop.stop()


async def test_a_host_that_hangs_up_is_asked_for_at_once(world: World) -> None:
    loop = FleetLoop(world.controller)
    await turn(loop)
    (host,) = await world.active()
    world.controller.doubt(host, "p")
    assert await turn(loop) == 1
    assert await turn(loop) == 0
    await loop.stop()
