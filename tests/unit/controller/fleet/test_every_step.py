"""The controller is killed at every step of a spawn and of an end: the right machines are there
after recovery, and no other (RENT-1, RENT-6…8, LEAK-1)."""

from __future__ import annotations

import pytest

from holdfast.core.states import InstanceState
from tests.store.pg_fixture import MakeStore
from tests.unit.controller.fleet.world import POOL, Killed, Steps, World, make_world


async def spawn_and_end(world: World) -> None:
    """From nothing to the pool's one host, and, once the pool is deleted, to nothing."""
    await world.cycle()
    for _ in range(4):
        await world.cycle()
    await world.store.fleet.delete_pool("p", now=world.now)
    for _ in range(6):
        if await world.store.fleet.list_pools():
            await world.cycle()


async def count_steps(make_store: MakeStore) -> list[str]:
    world, steps = await make_world(make_store), Steps()
    await world.make_pool()
    world.start(steps)
    await spawn_and_end(world)
    assert await world.store.fleet.list_pools() == []
    return steps.passed


async def test_the_steps_hold_every_write_and_call(make_store: MakeStore) -> None:
    passed = await count_steps(make_store)
    named = {step.split()[1] for step in passed}
    assert {"intend", "ask", "create", "note_made", "promote_host", "drain_if_idle"} <= named
    assert {"want_end", "terminate", "note_end_asked", "note_gone", "forget_pool"} <= named


async def test_the_right_machines_are_there_after_a_kill_at_any_step(make_store: MakeStore) -> None:
    steps = await count_steps(make_store)
    wrong = {}
    for number, step in enumerate(steps):
        found = await recover_from(number, make_store)
        await make_store.close()
        if found:
            wrong[f"{number}: {step}"] = found
    assert wrong == {}


async def recover_from(kill_at: int, make_store: MakeStore) -> str:
    """Kill the controller at a step, let another one lead, and return what is wrong then, or ""."""
    world = await make_world(make_store)
    await world.make_pool()
    world.start(Steps(kill_at))
    with pytest.raises(Killed):
        await spawn_and_end(world)
    world.start()  # another controller leads
    pools = await world.store.fleet.list_pools()
    ends = not pools or pools[0].deleted_at is not None
    for _ in range(15):
        if await world.store.fleet.list_pools():
            await world.cycle()
    alive = sorted(machine.intent for machine in world.provider.alive)
    active, rented = await world.active(), await world.open_instances()
    right = rented == [(host, InstanceState.MADE) for host in active] and alive == sorted(active)
    if ends and not await world.store.fleet.list_pools() and right and not alive:
        return ""
    if not ends and right and len(active) == POOL.min:
        return ""
    return f"machines {alive}, active hosts {active}, instances {rented}"
