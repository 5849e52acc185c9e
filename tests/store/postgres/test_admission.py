"""What only the store on PostgreSQL does: admission."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from holdfast.core.arrays.arrays import Member
from holdfast.core.causes import Cause, Watchdog
from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.placement.plan import (
    JobPlacement,
    QuotaLeft,
    Share,
    TaskPlacement,
    plan_admission,
)
from holdfast.core.report.budgets import Spend
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.moves.values import NewArray, Released
from tests.store.conformance.shared import TRIPPED, events_of
from tests.store.rig import OK, STOPPED, Rig, fails


async def test_order_and_the_front_of_the_queue(rig: Rig) -> None:
    await rig.host(slots=1)
    first, key = await rig.running()
    others = [await rig.submit() for _ in range(3)]
    urgent = await rig.submit(priority=90)
    assert await rig.places(urgent, *others) == [0, 1, 2, 3]
    await rig.sync(
        ended=[
            (
                key,
                TaskFacts(
                    lost=None,
                    trip=Trip(
                        watchdog=Watchdog.STALL,
                        exit_code=76,
                        reason="silent",
                        evidence={"age": 120.5},
                    ),
                ),
            )
        ]
    )
    await rig.complete()
    job = await rig.job(first)
    assert (job.state, job.watchdog_charged, job.avoid_hosts) == (JobState.QUEUED, 1, ("h1",))
    snap = await rig.store.admission.read_admission(10, now=rig.now)
    assert [c.job_id for c in snap.candidates] == [urgent, first, *others]
    assert snap.candidates[1].avoid_hosts == ("h1",)
    (tripped,) = [e for e in await rig.events(first) if e.kind == "task.tripped"]
    assert (tripped.data["watchdog"], tripped.data["exit_code"], tripped.data["evidence"]) == (
        "stall",
        76,
        {"age": 120.5},
    )
    assert tripped.host_id == "h1"
    limited = await rig.store.admission.read_admission(2, now=rig.now)
    assert [c.job_id for c in limited.candidates] == [urgent, first]


async def test_capacity_counts_devices_slots_and_memory_of_live_leases(rig: Rig) -> None:
    await rig.host(slots=4, gpus=4)
    job_id, key = await rig.running(gpus=2, cpus=3, memory_bytes=1 << 30)
    await rig.submit(gpus=4)  # capacity is only read where somebody waits for it
    (room,) = (await rig.store.admission.read_admission(10, now=rig.now)).hosts
    assert (room.free_cpu_slots, room.free_memory_bytes, room.free_devices) == (
        1,
        (1 << 34) - (1 << 30),
        (2, 3),
    )
    host = await rig.store.hosts.get_host("name-h1")
    assert (host.busy_cpu_slots, host.busy_gpus, host.running) == (3, (0, 1), 1)
    gauges = await rig.store.read_gauges(now=rig.now)
    assert (gauges.busy_cpu_slots, gauges.busy_gpus, gauges.total_cpu_slots, gauges.total_gpus) == (
        3,
        2,
        4,
        4,
    )
    await rig.store.jobs.cancel_job(job_id, "", now=rig.now)
    assert (
        await rig.store.read_gauges(now=rig.now)
    ).busy_gpus == 2  # occupied until the end is confirmed
    (room,) = (await rig.store.admission.read_admission(10, now=rig.now)).hosts
    assert (room.free_cpu_slots, room.free_devices) == (1, (2, 3))
    await rig.sync(ended=[(key, STOPPED)])
    assert (await rig.store.read_gauges(now=rig.now)).busy_gpus == 0


async def test_a_soft_quota_lets_jobs_wait(rig: Rig) -> None:
    """QUOTA-2."""
    await rig.host(slots=9)
    await rig.store.settings.put_project("p", {"quota_jobs": 2}, now=rig.now)
    mine = [await rig.submit(project="p") for _ in range(4)]
    other = await rig.submit(project="q")
    assert (await rig.store.admission.read_admission(9, now=rig.now)).quotas == {
        "p": QuotaLeft(jobs=2)
    }
    assert await rig.admit() == [*mine[:2], other]
    assert await rig.admit() == []
    assert (await rig.store.admission.read_admission(9, now=rig.now)).quotas == {
        "p": QuotaLeft(jobs=0)
    }
    project = await rig.store.settings.get_project("p")
    assert (project.running, project.unfinished) == (2, 4)


async def test_a_project_whose_budget_is_spent_starts_nothing(rig: Rig) -> None:
    """QUOTA-3: neither a plan made before nor one made after starts a job of it; what it submits is
    kept."""
    await rig.host(slots=9)
    budget = {"budget_usd_per_month": 5.0, "at_budget": "hold"}
    await rig.store.settings.put_project("p", budget, now=rig.now)
    ran = await rig.submit(project="p")
    assert await rig.admit() == [ran]
    waits = await rig.submit(project="p")
    spent = Spend(month="2026-11", usd=5.2, told=100, held="p has spent its budget")
    snapshot = await rig.store.admission.read_admission(9, now=rig.now)
    plan = plan_admission(snapshot.candidates, snapshot.hosts, snapshot.headroom)
    assert [placed.job_id for placed in plan.placements] == [waits]
    await rig.store.money.write_spends({"p": spent}, now=rig.now)
    ttls = dict.fromkeys([waits], 60.0)
    assert not await rig.reserve(plan.placements, ttls, now=rig.now)
    other = await rig.submit(project="q")
    assert await rig.admit() == [other]
    project = await rig.store.settings.get_project("p")
    assert (project.held, project.spent_usd, project.unfinished) == (spent.held, 5.2, 2)
    assert await rig.store.money.read_spends() == {"p": spent}
    freed = msgspec.structs.replace(spent, held="")
    await rig.store.money.write_spends({"p": freed}, now=rig.now)
    assert await rig.admit() == [waits]


async def test_gpus_are_counted_over_all_tasks(rig: Rig) -> None:
    await rig.host(slots=9, gpus=8)
    await rig.store.settings.put_project("p", {"quota_gpus": 5}, now=rig.now)
    gang = await rig.submit(project="p", tasks=2, gpus=2)
    wide, narrow, none = [await rig.submit(project="p", gpus=n) for n in (2, 1, 0)]
    assert await rig.admit() == [gang, narrow, none]
    assert (await rig.store.settings.get_project("p")).gpus == 5
    assert (await rig.job(wide)).state is JobState.QUEUED
    for job_id in (gang, narrow):
        await rig.store.jobs.cancel_job(job_id, "", now=rig.now)
    assert await rig.admit() == [wide]


async def test_placements_from_an_old_snapshot_do_not_exceed_a_quota(rig: Rig) -> None:
    """Two leaders for a moment: both planned on the same snapshot, and both write."""
    await rig.host(slots=9, gpus=8)
    await rig.store.settings.put_project("p", {"quota_jobs": 3, "quota_gpus": 4}, now=rig.now)
    jobs = [await rig.submit(project="p", gpus=1) for _ in range(6)]
    incarnation = rig.incarnations["h1"]

    def place(number: int) -> JobPlacement:
        task = TaskPlacement(rank=0, host_id="h1", incarnation=incarnation, devices=(number,))
        return rig.plan(jobs[number], task, project="p", gpus=1)

    ttls = dict.fromkeys(jobs, 300.0)
    one = rig.reserve([place(i) for i in (0, 1, 2)], ttls, now=rig.now)
    two = rig.reserve([place(i) for i in (3, 4, 5)], ttls, now=rig.now)
    applied = await asyncio.gather(one, two)
    assert sorted(map(len, applied)) == [0, 3]
    assert (await rig.store.settings.get_project("p")).running == 3


async def test_the_switch_of_one_project_leaves_the_others_alone(rig: Rig) -> None:
    await rig.host()
    ours, theirs = await rig.submit(project="ours"), await rig.submit(project="theirs")
    for job_id in (ours, theirs):
        await rig.fail(job_id, max_retries=1)
    await rig.store.settings.put_project("ours", {"retries_enabled": False}, now=rig.now)
    assert await rig.release() == Released(retries=1, held=1)
    assert (await rig.job(ours)).wait_cause == "retries_held"
    assert (await rig.job(theirs)).state is JobState.QUEUED
    # The limit's leftovers are those that may go: a held one is not waited for by the limit.
    assert await rig.release(0) == Released()
    assert await rig.store.jobs.count_waiting() == {("ours", "retries_held"): 1}


async def test_what_is_charged_to_other_budgets_is_held_and_what_costs_nothing_is_not(
    rig: Rig,
) -> None:
    await rig.host()
    tripped, preempted = await rig.submit(), await rig.submit()
    job = await rig.fail(tripped, TRIPPED, held="the cluster")
    assert (job.state, job.wait_cause, job.watchdog_charged) == (
        JobState.WAITING,
        "retries_held",
        1,
    )
    await rig.admit()
    key = await rig.key(preempted)
    await rig.sync()
    await rig.store.jobs.drain_job(preempted, Cause.PREEMPTED, "room is needed", now=rig.now)
    await rig.sync(ended=[(key, STOPPED)])
    await rig.complete(held="the cluster")
    assert (await rig.job(preempted)).state is JobState.QUEUED
    assert await rig.release() == Released(retries=1)
    (event,) = await events_of(rig, tripped, "job.retry_dispatched")
    assert event.message.startswith("its next attempt after stalled")
    assert await rig.places(tripped) == [1]  # both to the front, the later one first


async def test_shares_are_read_with_what_is_held_of_them(rig: Rig) -> None:
    """Of every project that has queued or live jobs; what others hold is borrowed."""
    await rig.host(slots=8, gpus=4)
    await rig.store.settings.put_project("p", {"share_gpus": 2, "share_cpu_slots": 3}, now=rig.now)
    await rig.store.settings.put_project("idle", {"share_gpus": 9}, now=rig.now)
    await rig.submit(project="p", gpus=1, cpus=2)
    await rig.submit(project="q", cpus=2, tasks=2)
    assert len(await rig.admit()) == 2
    await rig.submit(project="r")
    assert (await rig.store.admission.read_admission(9, now=rig.now)).shares == {
        "p": Share(gpus=2, cpu_slots=3, held_gpus=1),
        "q": Share(held_cpu_slots=4),
        "r": Share(),
    }
    found = {p.name: (p.gpus, p.cpu_slots) for p in await rig.store.settings.list_projects()}
    assert found == {"idle": (0, 0), "p": (1, 0), "q": (0, 4), "r": (0, 0)}


async def test_how_long_jobs_of_a_name_took_is_read_from_those_that_succeeded_at_once(
    rig: Rig,
) -> None:
    """In their project; of an array, from its own members. What failed first tells nothing."""
    await rig.host(slots=8)

    async def run(seconds: float, *, code: int = 0, **spec: Any) -> None:
        _, key = await rig.running(**spec)
        rig.tick(seconds)
        await rig.sync(ended=[(key, fails() if code else OK)])
        await rig.complete()

    await run(30.0, name="train")
    await run(50.0, name="train")
    await run(90.0, name="train", code=3)
    await run(70.0, name="train", project="other")
    await run(20.0)
    again = await rig.submit(name="train")
    assert (await rig.fail(again, max_retries=1)).state is JobState.WAITING
    await rig.release()
    await rig.admit()
    key = await rig.key(again)
    await rig.sync()
    await rig.sync(live=[key], started=[key])
    rig.tick(200.0)
    await rig.sync(ended=[(key, OK)])
    assert (await rig.job(again)).state is JobState.SUCCEEDED
    new = NewArray(
        id="array-1",
        spec=JobSpec(argv=("true",), name="train"),
        queue="cpu",
        members=tuple(Member(index=index) for index in range(2)),
        member_ids=("array-1-m0", "array-1-m1"),
        digest="00",
    )
    await rig.store.arrays.submit_array(new, now=rig.now)
    await rig.admit()
    keys = [await rig.key(f"array-1-m{n}") for n in range(2)]
    await rig.sync()
    await rig.sync(live=keys, started=keys)
    rig.tick(12.0)
    await rig.sync(ended=[(keys[0], OK)], live=keys[1:])
    asked = [("default", "train"), ("other", "train"), ("default", "true"), ("default", "none")]
    found = await rig.store.admission.read_spans([*asked, ("default", "array:array-1")])
    assert found == {
        ("default", "train"): 50.0,
        ("other", "train"): 70.0,
        ("default", "array:array-1"): 12.0,
    }
    running = await rig.store.admission.read_running(now=rig.now)
    assert [each.kin for each in running] == ["array:array-1"]
