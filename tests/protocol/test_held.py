"""Orders held ahead, and an agent that dies while it gives one back (AHEAD-2)."""

from __future__ import annotations

from holdfast.core.endings.decide import Policy
from holdfast.core.retry import RetryPolicy
from holdfast.wire.guardian import TaskEnded
from tests.protocol.host import Host
from tests.protocol.world import World


def make_world() -> World:
    """Return a world of one host of one slot, which would always hold one order more."""
    policy = Policy(retry=RetryPolicy(), watchdog_cap=1, infra_cap=1, start_failure_limit=3)
    world = World(rates=[1.0, 1.0], slots=1, gpus=0, policy=policy, seed=0)
    for host in world.hosts:
        host.boot()
        host.draw = lambda: 0.99
    world.wait(1.0)
    world.submit_crowd(14)
    world.wait(1.0)
    return world


def end_running(world: World, host: Host) -> None:
    """Have what runs on the host end well."""
    for process in list(host.processes.values()):
        if process.live:
            host.exit(process.key, TaskEnded(key=process.key, exit_code=0))
    host.turn(world.t)


def hold_one(world: World) -> Host:
    """Return a host that holds an order beyond its slot."""
    host = world.hosts[0]
    end_running(world, host)
    world.call(host)
    assert len(host.held) == 1
    return host


def test_a_held_order_begins_when_a_slot_is_free() -> None:
    world = make_world()
    host = hold_one(world)
    (key,) = host.held
    end_running(world, host)
    assert key in world.truth.launched
    world.wait(1.0)


def test_an_order_that_was_given_back_begins_under_no_later_agent() -> None:
    """The report of it arrives when the agent that sent it is long dead, and its job then goes to
    another host: it must run on none before that."""
    world = make_world()
    host = hold_one(world)
    world.links[host.id] = "hold_request"
    world.wait(4.0)  # it is given back, and the controller does not hear of it
    assert host.returned
    host.kill_agent()
    host.start_agent()
    world.links[host.id] = "ok"
    world.wait(0.5)
    end_running(world, host)  # a slot is free
    while world.held:
        world.deliver(0, keep=False)
        world.check()
    world.wait(2.0)
