"""Cycles beside a provider that errs, and hosts that fall."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest

from holdfast.controller.fleet import prices
from holdfast.controller.fleet.cycle import PoolCycles
from holdfast.controller.fleet.forget import forget_pool
from holdfast.controller.loops.drains import DrainsLoop
from holdfast.core.causes import Budget, Cause
from holdfast.core.facts import TaskFacts
from holdfast.core.fleet.instances import Machine, MachineState
from holdfast.core.ids import TaskKey
from holdfast.core.placement.types import JobPlacement, TaskPlacement
from holdfast.core.spec import JobSpec
from holdfast.core.states import HostState, InstanceState
from holdfast.moves.values import NewJob
from holdfast.providers.interface import (
    MAX_RETRY_SECONDS,
    NoCapacity,
    ProviderDown,
    Refused,
    Throttled,
)
from tests.store.pg_fixture import MakeStore
from tests.unit.controller.fleet.world import GPU, POOL, World, make_world


@pytest.fixture
async def world(make_store: MakeStore) -> World:
    made = await make_world(make_store)
    await made.make_pool()
    return made


async def test_a_host_comes_serves_and_goes(world: World) -> None:
    first = await world.cycle()
    assert first.actions.hosts_rented == 1
    await world.cycle()
    (host,) = await world.active()
    (order,) = world.provider.orders.values()
    assert order.env["HOLDFAST_URL"] == "http://controller"
    assert order.env["HOLDFAST_INTENT"] == order.intent == host
    assert order.name.startswith(f"hf-{order.installation}-p-")
    assert order.host_name == (await world.store.hosts.get_host(host)).name
    smaller = msgspec.structs.replace(POOL, min=0)
    await world.store.fleet.put_pool(smaller, now=world.now)

    async def empty() -> bool:
        return await world.open_instances() == []

    await world.until(empty)
    assert world.provider.alive == []
    assert (await world.store.hosts.get_host(host)).state is HostState.TERMINATED


async def test_a_machine_whose_creation_was_never_answered_is_adopted(world: World) -> None:
    world.provider.create_errors = [(ProviderDown("a time-out"), True)]
    await world.cycle()
    assert [state for _, state in await world.open_instances()] == [InstanceState.ASKED]
    world.tick(30)
    summary = await world.cycles.run(await world.store.fleet.get_pool("p"))
    assert any("m-1 was found" in reason for reason in summary.reasons)
    await world.cycle()
    await world.cycle()
    assert len(await world.active()) == len(world.provider.alive) == 1


async def test_a_creation_that_made_nothing_is_given_up_and_tried_again(world: World) -> None:
    world.provider.create_errors = [(ProviderDown("a time-out"), False)]

    async def serves() -> bool:
        return len(await world.active()) == 1

    await world.until(serves)
    assert len(world.provider.alive) == 1


async def test_an_offer_without_capacity_is_left_alone_for_a_while(world: World) -> None:
    world.provider.create_errors = [(NoCapacity("none in this region"), False)]
    await world.cycle()
    summary = await world.cycle(5.0)
    assert summary.actions.hosts_rented == 0
    assert "none in this region" in (await world.store.fleet.get_pool("p")).blocked


async def test_what_no_record_asks_for_is_ended_at_the_second_sight(world: World) -> None:
    world.provider.machines["x"] = Machine(
        ref="x", intent="never-was", pool="p", state=MachineState.RUNNING
    )
    await world.cycle()
    assert "terminate x" not in world.provider.calls
    await world.cycle()
    assert "terminate x" in world.provider.calls


async def test_a_machine_of_another_pool_is_left_alone(world: World) -> None:
    world.provider.machines["x"] = Machine(
        ref="x", intent="other", pool="q", state=MachineState.RUNNING
    )
    for _ in range(3):
        await world.cycle()
    assert "terminate x" not in world.provider.calls


async def test_a_listing_that_fails_judges_nothing(world: World) -> None:
    for _ in range(3):
        await world.cycle()
    world.provider.list_error = ProviderDown("away")
    for _ in range(20):
        summary = await world.cycle()
    assert any("cannot be listed" in reason for reason in summary.reasons)
    assert len(await world.active()) == len(world.provider.alive) == 1


async def test_a_provider_that_cannot_be_asked_is_said_and_rents_nothing(world: World) -> None:
    """It had been said in a cycle's reasons alone, and every cycle left one more unanswered question
    that was charged for."""
    wide = msgspec.structs.replace(POOL, min=3)
    await world.store.fleet.put_pool(wide, now=world.now)
    world.provider.list_error = Refused("GET /machines answered 401: the key was revoked")
    for _ in range(5):
        await world.cycle()
    assert not any(call.startswith("create") for call in world.provider.calls)
    pool = await world.store.fleet.get_pool("p")
    assert pool.blocked == (
        "pool p rents nothing, because its provider cannot be asked: GET /machines answered 401: the "
        "key was revoked"
    )
    world.provider.list_error = KeyError("machines")  # type: ignore[assignment]  # a defect of its own
    await world.cycle()
    assert "KeyError: 'machines'" in (await world.store.fleet.get_pool("p")).blocked
    world.provider.list_error = None
    assert (await world.cycle()).actions.hosts_rented == 3
    assert (await world.store.fleet.get_pool("p")).blocked == ""


async def test_a_dead_provider_does_not_keep_the_jobs_from_another_pool(
    make_store: MakeStore,
) -> None:
    """Its offers were the cheapest, so it had kept them."""
    world = await make_world(make_store, msgspec.structs.replace(POOL, name="cheap", min=0))
    await world.make_pool()
    dear = msgspec.structs.replace(
        POOL, name="dear", min=0, offers=(msgspec.structs.replace(GPU, usd_per_hour=9.0),)
    )
    await world.store.fleet.put_pool(dear, now=world.now)
    jobs = [
        NewJob(id=f"job-{n:02d}", spec=JobSpec(argv=("true",), gpus=1), queue="gpu")
        for n in range(2)
    ]
    await world.store.jobs.submit_jobs(jobs, now=world.now)
    other = PoolCycles(world.controller, "dear")
    world.provider.list_error = ProviderDown("connection refused")
    assert (await world.cycle()).actions.hosts_rented == 0
    world.provider.list_error = None
    summary = await other.run(await world.store.fleet.get_pool("dear"))
    assert summary.actions.hosts_rented == 1
    await other.rentals.wait_for_calls()
    await other.close()


async def test_a_creation_without_an_answer_costs_nothing_and_its_words_are_kept(
    world: World,
) -> None:
    world.provider.create_errors = [(ProviderDown("create ended with 1: no route to host"), False)]
    await world.cycle()
    (instance,) = await world.store.fleet.list_instances()
    assert instance.said == "create ended with 1: no route to host"
    (host,) = await world.store.hosts.list_hosts()
    assert host.provider_says == instance.said
    world.tick(3600)
    assert await world.store.fleet.read_money(now=world.now) == {}
    for _ in range(6):
        summary = await world.cycle()
        if any("never came" in reason for reason in summary.reasons):
            break
    assert any("which says: create ended with 1: no route to host" in r for r in summary.reasons)


async def test_the_words_about_a_machine_that_starts_are_shown_and_are_the_reason_of_its_end(
    world: World,
) -> None:
    world.dead = {"m-1"}
    await world.cycle()
    words = "Pending: Unschedulable 0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    world.provider.machines["m-1"] = msgspec.structs.replace(
        world.provider.machines["m-1"], state=MachineState.STARTING, reason=words
    )
    await world.cycle()
    (host,) = await world.store.hosts.list_hosts()
    assert (host.state, host.provider_says) == (HostState.SPAWNING, words)
    for _ in range(12):
        summary = await world.cycle()
        if summary.actions.hosts_failed:
            break
    ended = await world.store.hosts.get_host(host.id)
    assert ended.reason == f"its machine did not start within 300 s; its provider says: {words}"
    assert any(words in reason for reason in summary.reasons)


async def test_a_provider_that_asks_for_patience_is_left_in_peace_for_so_long(world: World) -> None:
    """It had been asked again after 30 s, whatever it said, and by every other call at once."""
    world.provider.create_errors = [(Throttled("too many requests", retry_seconds=200.0), False)]
    await world.cycle()
    world.provider.calls.clear()
    for _ in range(6):
        await world.cycle()
    assert world.provider.calls == []
    assert (await world.store.fleet.get_pool("p")).quiet_reason == "too many requests"
    blocked = (await world.store.fleet.get_pool("p")).blocked
    world.start()  # another controller keeps to it, too
    await world.cycle(10)
    assert world.provider.calls == []
    assert (
        blocked == "pool p leaves its provider in peace for 20 s, as that asked: too many requests"
    )
    await world.cycle()
    await world.cycle()
    assert "list" in world.provider.calls
    assert len(world.provider.alive) == 1
    world.provider.list_error = Throttled("slow down", retry_seconds=1e308)
    await world.cycle()
    until = (await world.store.fleet.get_pool("p")).quiet_until
    assert until is not None
    assert (until - world.now).total_seconds() == MAX_RETRY_SECONDS


async def test_a_pool_whose_cluster_is_gone_is_forgotten_on_an_operators_word(world: World) -> None:
    for _ in range(3):
        await world.cycle()
    (host,) = await world.active()
    job = NewJob(id="0" * 20, spec=JobSpec(argv=("true",)), queue="cpu")
    await world.store.jobs.submit_jobs([job], now=world.now)
    world.provider.list_error = ProviderDown("no such host: cluster.example")
    await world.store.fleet.delete_pool("p", now=world.now)
    for _ in range(10):
        await world.cycle()
    pool = await world.store.fleet.get_pool("p")
    assert "no such host: cluster.example" in pool.blocked
    await forget_pool(world.controller, pool, "forgotten by admin")
    assert await world.store.fleet.list_pools() == []
    assert await world.open_instances() == []
    assert (await world.store.hosts.get_host(host)).state is HostState.TERMINATED
    (gone,) = await world.store.fleet.list_instances(include_gone=True)
    assert gone.reason == "its pool p was forgotten by admin, and no provider confirmed its end"


async def test_a_machine_that_its_provider_lost_is_replaced(world: World) -> None:
    for _ in range(3):
        await world.cycle()
    (before,) = await world.active()
    world.provider.end("m-1", "its node failed")
    summary = await world.cycle()
    assert summary.actions.hosts_failed == 1
    await world.cycle()
    await world.cycle()
    (after,) = await world.active()
    assert before != after
    assert (await world.store.hosts.get_host(before)).state is HostState.TERMINATED


@pytest.mark.parametrize("announced", [False, True])
async def test_a_preempted_machine_is_told_from_one_that_is_lost(
    world: World, announced: bool
) -> None:
    """A pod that is preempted is often gone from the list before it is listed as ended."""
    for _ in range(3):
        await world.cycle()
    (host,) = await world.active()
    machine = world.provider.machines["m-1"]
    words = "Preempted: by default/urgent on node n1"
    world.dead = {"m-1"}
    if announced:
        world.provider.machines["m-1"] = msgspec.structs.replace(
            machine, state=MachineState.ENDING, reason=words, lost="preempted"
        )
        await world.cycle()
        assert (await world.store.hosts.get_host(host)).state is HostState.ACTIVE, "it may save yet"
        world.provider.hidden = {"m-1"}
        await world.cycle()
    else:
        world.provider.machines["m-1"] = msgspec.structs.replace(
            machine, state=MachineState.GONE, reason=words, lost="preempted"
        )
    await world.cycle()
    (gone,) = [
        i for i in await world.store.fleet.list_instances(include_gone=True) if i.host_id == host
    ]
    assert (gone.state, gone.fault) == (InstanceState.GONE, "preempted")
    assert words in gone.reason


async def start_task(world: World, host: str) -> TaskKey:
    """Run a job of one task on the host of machine m-1."""
    job = NewJob(id="0" * 20, spec=JobSpec(argv=("true",)), queue="cpu")
    await world.store.jobs.submit_jobs([job], now=world.now)
    (capacity,) = (await world.store.admission.read_admission(9, now=world.now)).hosts
    place = TaskPlacement(rank=0, host_id=host, incarnation=capacity.incarnation, devices=())
    start = JobPlacement(
        job_id=job.id, epoch=0, queue="cpu", project="default", gpus=0, cpu_slots=1,
        memory_bytes=0, tasks=(place,),
    )  # fmt: skip
    await world.store.leases.reserve_and_offer([start], {job.id: 300.0}, (), now=world.now)
    key = TaskKey(job.id, 0, 1)
    await world.sync(host, "m-1")
    await world.sync(host, "m-1", live=(key,), started=(key,))
    return key


async def test_the_tasks_of_a_machine_that_is_about_to_be_taken_away_save_and_go(
    world: World,
) -> None:
    """EVICT-2: of the provider's two minutes, 30 s are left for the upload."""
    for _ in range(3):
        await world.cycle()
    (host,) = await world.active()
    key = await start_task(world, host)
    machine = world.provider.machines["m-1"]
    world.dead = {"m-1"}
    world.provider.machines["m-1"] = msgspec.structs.replace(
        machine,
        reason="spot interruption",
        lost="preempted",
        leaves_at=world.now + timedelta(seconds=150),
    )
    for seconds in (30.0, 10.0):
        await world.cycle(seconds)
        (order,) = (await world.sync(host, "m-1", live=(key,))).preempts
        assert (order.cause, order.hard, order.notice_seconds) == (Cause.PREEMPTED, False, 90.0)
    assert order.reason.endswith("its provider takes it away in 120 s: spot interruption")
    assert (await world.store.hosts.get_host(host)).state is HostState.DRAINING, "no new work"

    await world.sync(host, "m-1", ended=((key, TaskFacts(stopped=True, signal=15)),))
    world.provider.end("m-1")
    for _ in range(2):
        await world.cycle()
    (gone,) = [
        i for i in await world.store.fleet.list_instances(include_gone=True) if i.host_id == host
    ]
    assert (gone.state, gone.fault) == (InstanceState.GONE, "preempted")


async def test_a_host_that_an_operator_terminates_gives_its_machine_back(world: World) -> None:
    for _ in range(3):
        await world.cycle()
    (host,) = await world.active()
    await world.store.hosts.move_host(host, "terminate", "by hand", now=world.now)
    await world.cycle()
    assert world.provider.machines["m-1"].state is MachineState.GONE


async def test_a_controller_that_could_not_hear_blames_no_host(world: World) -> None:
    """CYCLE-3: the silence of an hour is the controller's own."""
    for _ in range(3):
        await world.cycle()
    (host,) = await world.active()
    world.tick(3600)
    world.start()
    world.controller.leadership.begin(world.now)
    world.dead = {"m-1"}  # its agent has not called again yet

    job = NewJob(id="0" * 20, spec=JobSpec(argv=("true",)), queue="cpu")
    await world.store.jobs.submit_jobs([job], now=world.now)
    await world.cycle()
    assert await world.active() == [host]
    for _ in range(12):
        await world.cycle()
    assert host not in await world.active(), "its own silence counts from then on"


async def test_a_silent_host_is_no_supply_for_a_job_and_none_is_rented_while_nothing_waits(
    world: World,
) -> None:
    """POOL-3: admission gives it nothing, so the pool does not count on it either."""
    for _ in range(3):
        await world.cycle()
    world.dead = {"m-1"}
    assert (await world.cycle()).actions.hosts_rented == 0
    job = NewJob(id="0" * 20, spec=JobSpec(argv=("true",)), queue="cpu")
    await world.store.jobs.submit_jobs([job], now=world.now)
    summary = await world.cycle()
    assert (summary.actions.hosts_rented, summary.actions.hosts_failed) == (1, 0)


async def test_jobs_that_their_queue_does_not_let_run_rent_no_hosts(world: World) -> None:
    await world.store.settings.put_queue("gpu", {"max_running": 2}, now=world.now)
    jobs = [
        NewJob(id=f"job-{n:02d}", spec=JobSpec(argv=("true",), gpus=1), queue="gpu")
        for n in range(9)
    ]
    await world.store.jobs.submit_jobs(jobs, now=world.now)
    summary = await world.cycle()
    assert summary.status.queued_tasks == 2
    assert summary.actions.hosts_rented == 1
    await world.store.settings.put_queue("gpu", {"max_running": 9}, now=world.now)
    await world.controller.settings.refresh()
    summary = await world.cycle()
    assert summary.actions.hosts_rented == 2


async def test_a_providers_own_price_counts_at_the_ceilings_and_on_record(
    make_store: MakeStore,
) -> None:
    world = await make_world(make_store, msgspec.structs.replace(POOL, max_usd_per_hour=2.0))
    await world.make_pool()
    world.provider.price = 2.5
    summary = await world.cycle()
    assert summary.actions.hosts_rented == 0
    said = "pool p at its $/hour ceiling of $2.00: one more host would make it $2.50"
    assert said in summary.reasons
    world.provider.quote_error = ProviderDown("no prices now")
    await world.cycle(seconds=90)
    assert not world.provider.alive, "the last price counts where none can be had"
    world.provider.quote_error, world.provider.price = None, 1.5
    world.provider.calls.clear()
    await world.cycle(seconds=90)
    assert world.provider.calls.count("quote") == 1
    (instance,) = await world.store.fleet.list_instances()
    assert instance.usd_per_hour == 1.5
    await world.cycle()
    assert world.provider.calls.count("quote") == 1, "asked only where something is to be spawned"


async def test_what_a_provider_asks_decides_between_pools(make_store: MakeStore) -> None:
    """By its own offer the other pool is the dearer one; its provider asks for less."""
    world = await make_world(make_store, msgspec.structs.replace(POOL, min=0))
    await world.make_pool()
    offer = msgspec.structs.replace(GPU, name="other", usd_per_hour=3.0)
    other = msgspec.structs.replace(world.spec, name="other", offers=(offer,))
    record = await world.store.fleet.put_pool(other, now=world.now)
    world.provider.prices["other"] = 0.5
    spec = JobSpec(argv=("true",), gpus=1)
    await world.store.jobs.submit_jobs([NewJob(id="j", spec=spec, queue="gpu")], now=world.now)
    cycles = PoolCycles(world.controller, "other")
    assert (await cycles.plan(record)).summary.actions.hosts_rented == 1
    assert (await world.cycle()).actions.hosts_rented == 0, "the job is the other pool's"
    await cycles.close()


async def _compete(world: World) -> PoolCycles:
    """Another pool whose own offer is the cheaper one, and a job that either could run."""
    await world.make_pool()
    offer = msgspec.structs.replace(GPU, name="other", usd_per_hour=0.8)
    other = msgspec.structs.replace(world.spec, name="other", offers=(offer,))
    await world.store.fleet.put_pool(other, now=world.now)
    spec = JobSpec(argv=("true",), gpus=1)
    await world.store.jobs.submit_jobs([NewJob(id="j", spec=spec, queue="gpu")], now=world.now)
    return PoolCycles(world.controller, "other")


async def test_the_first_plan_of_a_pool_hears_the_prices_of_those_it_competes_with(
    make_store: MakeStore,
) -> None:
    """No cycle of pool p came before, so that its provider's price of 0.5 is not known yet."""
    world = await make_world(make_store, msgspec.structs.replace(POOL, min=0))
    cycles = await _compete(world)
    world.provider.prices["gpu"] = 0.5
    record = await world.store.fleet.get_pool("other")
    assert (await cycles.run(record)).actions.hosts_rented == 0
    assert (await world.cycle()).actions.hosts_rented == 1
    assert world.provider.calls.count("quote") == 2, "each pool is asked once a minute"
    await cycles.close()


async def test_a_pool_that_serves_other_queues_is_not_asked(make_store: MakeStore) -> None:
    world = await make_world(make_store, msgspec.structs.replace(POOL, min=0, queues=("video",)))
    cycles = await _compete(world)
    record = await world.store.fleet.get_pool("other")
    await world.store.fleet.put_pool(msgspec.structs.replace(record.spec, queues=()), now=world.now)
    record = await world.store.fleet.get_pool("other")
    assert (await cycles.plan(record)).summary.actions.hosts_rented == 1
    assert world.provider.calls.count("quote") == 1
    await cycles.close()


async def test_a_provider_that_hangs_holds_up_the_plan_of_another_pool_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch, make_store: MakeStore
) -> None:
    """Its answer counts when it comes."""
    world = await make_world(make_store, msgspec.structs.replace(POOL, min=0))
    cycles = await _compete(world)
    world.provider.prices["gpu"] = 0.5
    gate = world.provider.quote_gates["gpu"] = asyncio.Event()
    monkeypatch.setattr(prices, "WAIT_SECONDS", 0.0)
    record = await world.store.fleet.get_pool("other")
    assert (await cycles.plan(record)).summary.actions.hosts_rented == 1
    gate.set()
    await world.controller.prices.asking["p"]
    assert (await cycles.plan(record)).summary.actions.hosts_rented == 0
    await cycles.close()
    await world.controller.background.close()


async def test_without_prices_of_the_provider_the_offers_count(make_store: MakeStore) -> None:
    world = await make_world(make_store)
    await world.make_pool()
    world.provider.quote_error = ProviderDown("no prices now")
    assert (await world.cycle()).actions.hosts_rented == 1
    (instance,) = await world.store.fleet.list_instances()
    assert instance.usd_per_hour == 1.0


async def test_a_pool_that_is_gone_is_measured_no_more(world: World) -> None:
    """Its last reading would count in every sum for ever."""
    await world.cycle()
    await world.cycle()
    registry = world.controller.metrics.registry
    assert registry.get_sample_value("holdfast_pool_usd_per_hour", {"pool": "p"}) == 1.0
    record = await world.store.fleet.delete_pool("p", now=world.now)
    while await world.store.fleet.list_pools():
        await world.let_agents_call()
        await world.cycles.run(record)
        await world.settle()
        world.tick(60)
    for name in ("usd_per_hour", "spent_today_usd", "queued_tasks"):
        assert registry.get_sample_value(f"holdfast_pool_{name}", {"pool": "p"}) is None


@pytest.mark.parametrize("announced", [False, True])
async def test_the_providers_word_stands_at_an_end_that_term_brought_first(
    world: World, announced: bool
) -> None:
    """Slurm's preemption sends TERM, so the agent stops its tasks and says goodbye before the queue
    shows `PREEMPTED`. A pod is often gone from the list before it is listed as ended."""
    for _ in range(3):
        await world.cycle()
    (host,) = await world.active()
    key = await start_task(world, host)
    world.dead = {"m-1"}
    stopped = TaskFacts(stopped=True, signal=15, stop_cause=Cause.HOST_DRAINED)
    await world.sync(host, "m-1", ended=((key, stopped),))
    await DrainsLoop(world.controller).run_once()
    await world.sync(host, "m-1", leaving=True)
    left = await world.store.hosts.get_host(host)
    assert (left.state, left.reason) == (HostState.TERMINATED, "its agent left")
    world.provider.machines["m-1"] = msgspec.structs.replace(
        world.provider.machines["m-1"],
        state=MachineState.ENDING if announced else MachineState.GONE,
        reason="PREEMPTED on n1",
        lost="preempted",
    )
    await world.cycle()
    said = "PREEMPTED on n1"
    if announced:
        world.provider.hidden = {"m-1"}
        await world.cycle()
        await world.cycle()
        said = f"its provider lists it no more, and had said: {said}"
    words = f"its provider took the host away: {said}"
    (gone,) = [
        i for i in await world.store.fleet.list_instances(include_gone=True) if i.host_id == host
    ]
    assert (gone.state, gone.fault, gone.reason) == (InstanceState.GONE, "preempted", said)
    assert (await world.store.hosts.get_host(host)).reason == f"its agent left; {words}"
    (attempt, *_) = await world.store.jobs.list_attempts(key.job_id)
    assert (attempt.cause, attempt.charged_to) == (Cause.HOST_DRAINED, Budget.NOTHING)
    assert attempt.reason.endswith(f"its host was shut down; {words}")
