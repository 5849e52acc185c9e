"""What every store must do for `store.hosts`."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from holdfast.core.causes import Cause
from holdfast.core.facts import TaskFacts
from holdfast.core.host_faults import Hindrance
from holdfast.core.placement.plan import plan_admission
from holdfast.core.states import HostState, JobState, TaskState
from holdfast.errors import Conflict, NotFound
from holdfast.moves import registration
from holdfast.wire.agent import HostFacts
from tests.store.rig import OK, Rig


async def test_a_new_incarnation_frees_its_tasks_at_once(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await rig.host(new=False)
    assert (
        await rig.job(job_id)
    ).state is JobState.RUNNING  # the same incarnation again: a repeated call
    await rig.host()
    assert (await rig.job(job_id)).state is JobState.DRAINING
    assert (await rig.store.jobs.list_tasks(job_id))[0].facts == TaskFacts(lost="new_incarnation")
    assert await rig.complete() == [job_id]
    job = await rig.job(job_id)
    assert (job.state, job.infra_charged, job.cause) == (JobState.QUEUED, 1, Cause.AGENT_TRANSIENT)
    answer = await rig.sync(live=[key], ended=[])
    assert answer.lost == (key,)
    assert (await rig.sync(ended=[(key, OK)])).refused == (
        key,
    )  # its end is on record as lost, so this is stale
    assert (await rig.kinds()).count("host.lost") == 1


FULL = Hindrance(part="starts", reason="no space left on device")


AWAY = Hindrance(
    part="containers", reason="docker does not answer", runtimes=("any", "docker"), devices=(0,)
)


async def test_a_host_that_is_set_aside_is_given_nothing_until_it_says_otherwise(rig: Rig) -> None:
    """ASIDE-1."""
    await rig.host()
    job_id = await rig.submit()
    await rig.sync(faults=[FULL])
    assert await rig.admit() == []
    await rig.sync()  # a call that says nothing of it changes nothing
    assert (await rig.store.hosts.get_host("h1")).faults == (FULL,)
    assert await rig.admit() == []
    await rig.sync(faults=[FULL])
    await rig.sync(faults=[])
    assert await rig.admit() == [job_id]
    told = [
        (e.kind, e.host_id) for e in await rig.events() if e.kind in ("host.faulty", "host.able")
    ]
    assert told == [("host.faulty", "h1"), ("host.able", "h1")]


async def test_a_plan_that_a_fault_overtook_is_refused(rig: Rig) -> None:
    """ADMIT-2."""
    await rig.host()
    job_id = await rig.submit()
    snap = await rig.store.admission.read_admission(10, now=rig.now)
    plan = plan_admission(snap.candidates, snap.hosts, snap.headroom)
    await rig.sync(faults=[FULL])
    assert await rig.reserve(plan.placements, {job_id: 300.0}, now=rig.now) == []


async def test_without_its_engine_a_host_takes_everything_but_images(rig: Rig) -> None:
    """ASIDE-1."""
    await rig.host(gpus=2, faults=[AWAY])
    image = await rig.submit(image="a")
    other = await rig.submit(image="a", runtime="podman")
    plain = await rig.submit(gpus=1, cpus=0)
    second = await rig.submit(gpus=1, cpus=0)
    assert set(await rig.admit()) == {other, plain}
    assert [t.devices for t in await rig.store.jobs.list_tasks(plain)] == [(1,)]
    await rig.sync(faults=[])
    assert set(await rig.admit()) == {image, second}


async def test_a_task_whose_container_may_still_run_keeps_its_lease(rig: Rig) -> None:
    """DESK-1, LEASE-3."""
    await rig.host()
    kept, key = await rig.running()
    gone, _ = await rig.running()
    await rig.host(held=[key])
    assert (await rig.job(gone)).state is JobState.DRAINING
    assert (await rig.job(kept)).state is JobState.RUNNING
    await rig.host(new=False)
    assert (await rig.job(kept)).state is JobState.DRAINING


async def test_moving_hosts(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    assert (
        await rig.store.hosts.move_host("h1", "drain", "disk swap", now=rig.now)
    ).state is HostState.DRAINING
    with pytest.raises(Conflict, match="undrain"):
        await rig.store.hosts.move_host("h1", "release", "", now=rig.now)
    with pytest.raises(Conflict):
        await rig.store.hosts.move_host("h1", "register", "", now=rig.now)
    assert (await rig.job(job_id)).state is JobState.RUNNING
    await rig.store.hosts.move_host("h1", "undrain", "", now=rig.now)
    await rig.store.hosts.move_host("h1", "drain", "disk swap", hard=True, now=rig.now)
    (order,) = (await rig.sync(live=[key])).preempts
    assert (order.cause, order.operator_stop) == (Cause.HOST_DRAINED, True)
    await rig.store.hosts.move_host("h1", "quarantine", "smoke", now=rig.now)
    assert (
        await rig.store.hosts.move_host("h1", "terminate", "burnt", now=rig.now)
    ).state is HostState.TERMINATED
    assert (await rig.store.jobs.list_tasks(job_id))[0].state is TaskState.PREEMPTED
    assert (await rig.sync(live=[key])).status == "stale"
    assert await rig.store.hosts.list_hosts() == []
    assert len(await rig.store.hosts.list_hosts(include_terminated=True)) == 1
    await rig.host()
    await rig.host("other")
    listed = rig.store.hosts.list_hosts
    for part in ("ME-OTH", "OTH"):  # of its name, and the beginning of its id
        assert [host.id for host in await listed(part=part)] == ["other"]
    assert await listed(part="none") == []
    assert [host.id for host in await listed(limit=1)] == ["h1"]
    assert (await rig.store.hosts.get_host("h1")).state is HostState.ACTIVE
    with pytest.raises(NotFound):
        await rig.store.hosts.move_host("h9", "drain", "", now=rig.now)
    moved = [e.data["event"] for e in await rig.events() if e.kind == "host.moved"]
    assert moved == ["drain", "undrain", "drain", "quarantine", "terminate"]


async def test_hosts_in_trouble_and_hosts_with_gpus_are_listed(rig: Rig) -> None:
    for name, gpus in (("plain", 0), ("drained", 0), ("small", 1)):
        await rig.host(name, gpus=gpus)
    fault = Hindrance(part="starts", reason="no cgroup")
    await rig.host("aside", faults=[fault])
    listed = rig.store.hosts.list_hosts
    assert [host.id for host in await listed(trouble=True)] == ["aside"]
    await rig.store.hosts.move_host("drained", "drain", "", now=rig.now)
    assert [host.id for host in await listed(trouble=True)] == ["aside", "drained"]
    assert [host.id for host in await listed(gpus=True)] == ["small"]
    assert await listed(gpus=True, trouble=True) == []


async def test_a_leaving_host_is_terminated_after_its_ends(rig: Rig) -> None:
    await rig.host(slots=3)
    done, key = await rig.running()
    left, _ = await rig.offered()
    told = TaskFacts(signal=15, stopped=True, stop_cause=Cause.HOST_DRAINED)
    third, third_key = await rig.running()
    for _ in range(2):  # the answer may be lost and the call repeated
        answer = await rig.sync(ended=[(key, OK), (third_key, told)], leaving=True)
        assert answer.status == "ok"
        assert set(answer.acked) == {key, third_key}
    assert (await rig.store.hosts.get_host("h1")).state is HostState.TERMINATED
    assert (await rig.job(done)).state is JobState.SUCCEEDED
    await rig.complete()
    assert (await rig.job(left)).cause is Cause.AGENT_TRANSIENT
    job = await rig.job(third)
    assert (job.state, job.cause, job.infra_charged) == (JobState.QUEUED, Cause.HOST_DRAINED, 0)


async def test_a_gpu_fault_quarantines_the_host(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await rig.sync(ended=[(key, TaskFacts(exit_code=1, gpu_lost="fell off the bus"))])
    await rig.complete()
    assert (await rig.job(job_id)).avoid_hosts == ("h1",)
    assert (await rig.store.hosts.get_host("h1")).state is HostState.QUARANTINED
    assert (await rig.events())[-1].kind == "host.moved"


async def test_a_draining_host_stops_its_work_at_the_deadline_and_once(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    host = await rig.store.hosts.move_host(
        "h1", "drain", "disk swap", deadline_seconds=60, now=rig.now
    )
    assert host.drain_deadline == rig.now + timedelta(seconds=60)
    waiting = await rig.submit()
    assert await rig.admit() == [], "nothing new starts there"
    rig.tick(59)
    assert await rig.store.hosts.drain_due_hosts(now=rig.now) == {}
    assert (await rig.job(job_id)).state is JobState.RUNNING
    rig.tick(2)
    assert await rig.store.hosts.drain_due_hosts(now=rig.now) == {"h1": [job_id]}
    assert await rig.store.hosts.drain_due_hosts(now=rig.now) == {}
    job = await rig.job(job_id)
    assert (job.state, job.drain_cause) == (JobState.DRAINING, Cause.HOST_DRAINED)
    (order,) = (await rig.sync(live=[key])).preempts
    assert (order.hard, order.operator_stop) == (False, False)
    assert (await rig.store.hosts.get_host("h1")).drain_deadline is None
    await rig.store.hosts.move_host("h1", "undrain", "", now=rig.now)
    assert waiting in await rig.admit()


@pytest.mark.parametrize("deadline", [None, 60.0])
async def test_a_host_that_is_scaled_down_stops_its_work_at_no_charge(
    rig: Rig, deadline: float | None
) -> None:
    await rig.host()
    job_id, key = await rig.running()
    host = await rig.store.hosts.move_host(
        "h1", "drain", "too many", scale_down=True, deadline_seconds=deadline, now=rig.now
    )
    assert host.state is HostState.DRAINING
    if deadline is not None:
        assert (await rig.job(job_id)).state is JobState.RUNNING
        rig.tick(deadline + 1)
        assert await rig.store.hosts.drain_due_hosts(now=rig.now) == {"h1": [job_id]}
    job = await rig.job(job_id)
    assert (job.state, job.drain_cause) == (JobState.DRAINING, Cause.SCALED_DOWN)
    assert "host name-h1 is scaled down" in (job.drain_reason or "")
    (order,) = (await rig.sync(live=[key])).preempts
    assert (order.cause, order.hard, order.operator_stop) == (Cause.SCALED_DOWN, False, False)
    await rig.sync(ended=[(key, TaskFacts(signal=15, stopped=True))])
    await rig.complete()
    job = await rig.job(job_id)
    assert (job.state, job.cause, job.retries_charged, job.infra_charged) == (
        JobState.QUEUED,
        Cause.SCALED_DOWN,
        0,
        0,
    )
    assert await rig.admit() == [], "nothing new starts there"
    (moved,) = [e for e in await rig.events() if e.kind == "host.moved"]
    assert (moved.data["event"], moved.data["cause"]) == ("drain", "scaled_down")
    # It is called back, and then drained for another reason: that one counts.
    await rig.store.hosts.move_host("h1", "undrain", "", now=rig.now)
    assert job_id in await rig.admit()
    await rig.store.hosts.move_host("h1", "drain", "", deadline_seconds=60.0, now=rig.now)
    rig.tick(61)
    assert job_id in (await rig.store.hosts.drain_due_hosts(now=rig.now))["h1"]
    assert (await rig.job(job_id)).drain_cause is Cause.HOST_DRAINED


async def test_a_second_drain_of_a_host_changes_its_deadline_or_ends_the_waiting(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await rig.store.hosts.move_host("h1", "drain", "disk swap", deadline_seconds=3600, now=rig.now)
    host = await rig.store.hosts.move_host(
        "h1", "drain", "disk swap, sooner", deadline_seconds=60, now=rig.now
    )
    assert (host.drain_deadline, host.reason) == (
        rig.now + timedelta(seconds=60),
        "disk swap, sooner",
    )
    host = await rig.store.hosts.move_host("h1", "drain", "take your time", now=rig.now)
    assert host.drain_deadline is None
    rig.tick(61)
    assert await rig.store.hosts.drain_due_hosts(now=rig.now) == {}
    await rig.store.hosts.move_host("h1", "drain", "it burns", hard=True, now=rig.now)
    (order,) = (await rig.sync(live=[key])).preempts
    assert (order.cause, order.operator_stop) == (Cause.HOST_DRAINED, True)
    assert (await rig.job(job_id)).state is JobState.DRAINING


async def test_a_host_does_not_take_the_name_of_another(rig: Rig) -> None:
    """NAME-1: under a key of its own it registers anew, and not as another."""
    await rig.host("h1")
    await rig.host("h2")

    async def register(host_id: str, name: str, key: bytes | None = None) -> None:
        facts = HostFacts(name=name, cpu_slots=1)
        incarnation = rig.incarnations.get(host_id, "inc-00001")
        await rig.store.hosts.register_host(host_id, key, incarnation, facts, now=rig.now)

    await register("h2", "name-h2")
    for host_id, key in (("h2", None), ("h3", b"k3")):
        with pytest.raises(Conflict, match=r"another host called name-h1 is on record \(h1"):
            await register(host_id, "name-h1", key)
    assert (await rig.store.hosts.get_host("name-h2")).id == "h2", "nothing was changed"
    await rig.store.hosts.move_host("h1", "terminate", "", now=rig.now)
    await register("h2", "name-h1")
    assert (await rig.store.hosts.get_host("name-h1")).id == "h2"


async def test_a_key_under_another_boot_is_refused_while_its_host_lives(rig: Rig) -> None:
    """NAME-3: a clone of a machine's disk has its key, and would end its work."""
    facts = HostFacts(name="h1", boot_id="one")
    register = rig.store.hosts.register_host
    await register("h1", b"key", "incarnation-1", facts, now=rig.now)
    rig.tick(5)
    clone = msgspec.structs.replace(facts, boot_id="two")
    with pytest.raises(Conflict, match="must not share a key") as refused:
        await register("h1", None, "incarnation-2", clone, now=rig.now)
    assert refused.value.code == "host_lives_elsewhere"
    await register("h1", None, "incarnation-3", facts, now=rig.now)  # its own guardian, anew
    rig.tick(registration.BOOT_SECONDS)
    host = await register("h1", None, "incarnation-4", clone, now=rig.now)
    assert host.incarnation == "incarnation-4"
