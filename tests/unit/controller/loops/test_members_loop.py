"""The loop that decides what becomes of fallen members, and those that give up late starts: what
they do when something is wrong."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from holdfast.controller.loops import members
from holdfast.controller.loops.admit import AdmitLoop
from holdfast.controller.loops.members import MembersLoop
from holdfast.controller.loops.sweeps import HostDrainsLoop, ReservationsLoop
from holdfast.controller.runtime.context import Controller
from holdfast.core.causes import Cause
from holdfast.core.endings.replace import plan_replacement
from holdfast.core.states import JobState, TaskState
from tests.simulated.blobs import MemoryBlobs
from tests.store.conformance.members import KILLED
from tests.store.rig import STOPPED, Rig


@pytest.fixture
def rig(told_rig: Rig) -> Rig:
    return told_rig


async def _reserve(rig: Rig, started: tuple[int, ...], *, supervised: bool = True) -> str:
    """A job on three hosts, its barrier open, of which these ranks have started."""
    for host in ("h1", "h2", "h3", "h4"):
        await rig.host(host, slots=1)
    job_id = await rig.submit(
        tasks=3, placement="spread", supervised=supervised, start_timeout_seconds=60.0
    )
    await rig.admit()
    tasks = await rig.store.jobs.list_tasks(job_id)
    for task in tasks:
        await rig.sync(str(task.host_id))
    for task in tasks:
        await rig.sync(str(task.host_id), claimed=[(task.key, 4711 if task.rank == 0 else 0)])
    for rank in started:
        await rig.sync(str(tasks[rank].host_id), live=[tasks[rank].key], started=[tasks[rank].key])
    return job_id


async def test_a_late_member_is_placed_anew_where_the_script_runs(rig: Rig) -> None:
    job_id, controller = await _reserve(rig, (0, 1)), Controller(rig.store, blobs=MemoryBlobs())
    rig.tick(61)
    assert await ReservationsLoop(controller).run_once() == {}
    task = (await rig.store.jobs.list_tasks(job_id))[2]
    assert (task.state, task.stop_cause) == (TaskState.PREEMPTING, Cause.START_TIMEOUT)
    assert (await rig.job(job_id)).drain_cause is None
    assert await ReservationsLoop(controller).run_once() == {}, "and its end is waited for"
    await rig.sync(str(task.host_id), ended=[(task.key, STOPPED)])
    assert (await MembersLoop(controller).run_once())["replaced"] == 1
    job = await rig.job(job_id)
    assert (job.state, job.rank_charges) == (JobState.RUNNING, {})
    for host in ("h1", "h2", "h3", "h4"):
        await rig.sync(host)
    await AdmitLoop(controller).run_once()
    assert (await rig.where(job_id, 2)) == "h4"


async def test_a_late_script_takes_all_with_it(rig: Rig) -> None:
    job_id = await _reserve(rig, (1, 2))
    rig.tick(61)
    assert await ReservationsLoop(Controller(rig.store, blobs=MemoryBlobs())).run_once() == {
        "expired": 0,
        "late": 1,
    }
    assert (await rig.job(job_id)).drain_cause is Cause.START_TIMEOUT


async def _silence(rig: Rig, loop: ReservationsLoop, job_id: str, seconds: int) -> list[Any]:
    """Run the loop every second, while every host but the last rank's syncs."""
    tasks, runs = await rig.store.jobs.list_tasks(job_id), []
    for _ in range(seconds):
        rig.tick(1)
        for task in tasks[:-1]:
            await rig.sync(str(task.host_id), live=[task.key])
        runs.append(await loop.run_once())
    return runs


async def test_a_start_that_waits_for_a_silent_host_is_drained(rig: Rig) -> None:
    """And the silent rank keeps its place until its lease is over (GANG-3)."""
    job_id, controller = (
        await _reserve(rig, (0, 1), supervised=False),
        Controller(rig.store, clock=lambda: rig.now.timestamp(), blobs=MemoryBlobs()),
    )
    controller.leadership.begin(rig.now - timedelta(days=1))
    loop = ReservationsLoop(controller)
    assert await _silence(rig, loop, job_id, 30) == [{}] * 30
    assert await _silence(rig, loop, job_id, 1) == [{"expired": 0, "late": 1}]
    job, tasks = await rig.job(job_id), await rig.store.jobs.list_tasks(job_id)
    assert (job.state, job.drain_cause) == (JobState.DRAINING, Cause.START_TIMEOUT)
    assert job.drain_reason == (
        f"rank 2 on {tasks[2].host_name} had not started, and no word came from there for 30 s "
        "(reservation_seconds)"
    )
    assert tasks[2].state is TaskState.PREEMPTING
    for task in tasks[:2]:
        await rig.sync(str(task.host_id), ended=[(task.key, STOPPED)])
    await rig.complete()
    assert (await rig.job(job_id)).state is JobState.DRAINING, "its lease is not over"


async def test_a_silent_member_that_has_not_started_is_stopped_by_itself(rig: Rig) -> None:
    job_id, controller = (
        await _reserve(rig, (0,)),
        Controller(rig.store, clock=lambda: rig.now.timestamp(), blobs=MemoryBlobs()),
    )
    controller.leadership.begin(rig.now - timedelta(days=1))
    assert await _silence(rig, ReservationsLoop(controller), job_id, 31) == [{}] * 31
    states = [task.state for task in await rig.store.jobs.list_tasks(job_id)]
    assert states == [TaskState.RUNNING, TaskState.RESERVED, TaskState.PREEMPTING]
    assert (await rig.job(job_id)).drain_cause is None


async def test_a_start_is_not_drained_for_the_controllers_own_silence(rig: Rig) -> None:
    """LEAD-4."""
    job_id = await _reserve(rig, (0, 1), supervised=False)
    ran = [0.0]
    controller = Controller(rig.store, clock=lambda: ran[0], blobs=MemoryBlobs())
    controller.leadership.begin(rig.now - timedelta(days=1))
    loop = ReservationsLoop(controller)
    assert await loop.run_once() == {}
    ran[0] += 50.0
    rig.tick(50)
    assert await loop.run_once() == {}
    assert (await rig.job(job_id)).drain_cause is None


async def test_a_replacement_that_does_not_start_is_placed_elsewhere(rig: Rig) -> None:
    job_id, keys = await rig.supervised(recovery_timeout_seconds=60.0)
    controller = Controller(rig.store, blobs=MemoryBlobs())
    await rig.host("h4", slots=1)
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], KILLED)])
    await MembersLoop(controller).run_once()
    await AdmitLoop(controller).run_once()
    await rig.sync("h4")
    rig.tick(59)
    assert await MembersLoop(controller).run_once() == {}
    rig.tick(2)
    assert await MembersLoop(controller).run_once() == {"replaced": 0, "late": 1, "released": 0}
    task = (await rig.store.jobs.list_tasks(job_id))[1]
    assert (task.host_id, task.state, task.stop_cause) == (
        "h4",
        TaskState.PREEMPTING,
        Cause.START_TIMEOUT,
    )
    await rig.sync("h4", ended=[(task.key, STOPPED)])
    await MembersLoop(controller).run_once()
    task = (await rig.store.jobs.list_tasks(job_id))[1]
    assert (task.state, task.replaced) == (TaskState.BLOCKED, 2)
    assert task.ready_at is not None
    assert task.ready_at > rig.now, "MEMBER-3: not at once, the second time"


async def test_a_member_that_cannot_be_decided_keeps_no_other_from_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job_id, keys = await rig.supervised()
    plan = plan_replacement

    def fail_for_one(job: Any, task: Any, *more: Any) -> Any:
        if task.rank == 1:
            raise ValueError("no reason")
        return plan(job, task, *more)

    monkeypatch.setattr(members, "plan_replacement", fail_for_one)
    for rank in (1, 2):
        await rig.sync(await rig.where(job_id, rank), ended=[(keys[rank], KILLED)])
    with caplog.at_level(logging.INFO):
        assert (await MembersLoop(Controller(rig.store, blobs=MemoryBlobs())).run_once())[
            "replaced"
        ] == 1
    assert "the fall of rank 1 could not be decided" in caplog.text
    states = [task.state for task in await rig.store.jobs.list_tasks(job_id)]
    assert states == [TaskState.RUNNING, TaskState.FAILED, TaskState.BLOCKED]


async def test_the_deadline_of_a_hosts_drain_wakes_the_host_of_a_member(rig: Rig) -> None:
    job_id, _ = await rig.supervised()
    controller = Controller(rig.store, blobs=MemoryBlobs())
    host = await rig.where(job_id, 1)
    await rig.store.hosts.move_host(host, "drain", "disk swap", deadline_seconds=10.0, now=rig.now)
    rig.tick(11)
    line = controller.wakes.host(host)
    seen = line.wake.version
    assert await HostDrainsLoop(controller).run_once() == {"drained": [host]}
    assert line.wake.version > seen
    assert (await rig.store.jobs.list_tasks(job_id))[1].state is TaskState.PREEMPTING
    assert (await rig.job(job_id)).state is JobState.RUNNING
