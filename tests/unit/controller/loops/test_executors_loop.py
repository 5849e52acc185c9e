"""The executors' loop: jobs that appear for calls that wait, and nothing twice."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.controller.loops.calls.executors import WITHDRAWN, ExecutorsLoop
from holdfast.controller.runtime.context import Controller
from holdfast.core.calls.executors import is_ahead, is_lent
from holdfast.core.calls.values import Family
from holdfast.core.ids import TaskKey
from holdfast.core.records import JobRecord
from holdfast.core.states import JobState
from holdfast.moves.values import JobFilter
from holdfast.store.postgres.calls.values import BusyCall, ExecutorTurn, ExecutorTurned, Feed
from holdfast.wire.calls import ExecutorReport
from tests.simulated.blobs import MemoryBlobs
from tests.store.rig import Rig

FAMILY = Family(app="mytasks", queue="cpu")


class Feeds:
    """What waits, as the store would say it."""

    def __init__(self) -> None:
        self.feeds: list[Feed] = []
        self.busy: list[BusyCall] = []

    async def read_busy(self) -> Sequence[BusyCall]:
        return self.busy

    async def read_feeds(self, **_: object) -> Sequence[Feed]:
        return self.feeds

    def wait_for(self, ready: int, family: Family = FAMILY, **fields: Any) -> None:
        plain: dict[str, Any] = {
            "id": len(self.feeds) + 1,
            "family": family,
            "model": None,
            "vram_gb": 0.0,
            "ready": ready,
            "head_priority": 50,
            "head_age_seconds": 0.0,
            "cold_wait_seconds": 60.0,
        }
        self.feeds.append(Feed(**{**plain, **fields}))


class Led:
    """A leader over a memory store with one host of the app."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.feeds = Feeds()
        store = rig.store
        store.calls = self.feeds  # type: ignore[assignment]  # only what the loop reads
        self.controller = Controller(store, clock=lambda: 0.0, blobs=MemoryBlobs())
        self.loop = ExecutorsLoop(self.controller)

    def tell_mean(self, seconds: float) -> None:
        """Have an executor report how long its calls take."""
        key = TaskKey("0" * 20, 0, 1)
        report = ExecutorReport(key=key, mean_seconds=seconds)
        turn = ExecutorTurn(host_id="h1", incarnation="i", report=report, family=FAMILY.name)
        self.controller.calls.note_report(turn, ExecutorTurned(key=key))

    def tell_room(self, job_id: str, free_gb: float, family: Family) -> None:
        """Have an executor report what its GPU has for a model."""
        report = ExecutorReport(key=TaskKey(job_id, 0, 1), free_gb=free_gb)
        turn = ExecutorTurn(host_id="h1", incarnation="i", report=report, family=family.name)
        self.controller.calls.note_report(turn, ExecutorTurned(key=report.key))

    async def live(self) -> list[JobRecord]:
        found = await self.rig.store.jobs.list_jobs(JobFilter(executors="only"))
        return [job for job in found if not job.state.terminal]


@pytest.fixture
async def led(told_rig: Rig) -> Led:
    rig = told_rig
    await rig.host(slots=4, labels={"app/mytasks": "yes"})
    return Led(rig)


async def test_calls_that_wait_get_executors_once(led: Led) -> None:
    led.feeds.wait_for(100_000)
    led.tell_mean(0.001)
    assert await led.loop.run_once() == {"submitted": 4}  # all that the host holds
    assert await led.loop.run_once() == {}
    another = ExecutorsLoop(led.controller)  # a leader that knows nothing of the first
    assert await another.run_once() == {}
    jobs = await led.live()
    assert {job.spec.executor for job in jobs} == {FAMILY.name}
    assert {(job.queue, job.state) for job in jobs} == {("cpu", JobState.QUEUED)}


async def test_another_gpu_is_tried_where_the_memory_of_one_is_not_enough(led: Led) -> None:
    await led.rig.host(name="big", gpus=2, labels={"app/mytasks": "yes"})
    family = Family(app="mytasks", queue="cpu", gpus=1)
    led.feeds.wait_for(1, family, model="qwen", vram_gb=28.0)
    assert await led.loop.run_once() == {"submitted": 1}
    assert await led.loop.run_once() == {}
    led.tell_room("0" * 20, 20.0, family)
    (job,) = await led.live()
    assert await led.rig.admit() == [job.id]
    key = await led.rig.key(job.id)
    await led.rig.sync("big")
    await led.rig.sync("big", live=[key], started=[key])
    assert await led.loop.run_once() == {"submitted": 1}


async def run_all(led: Led) -> list[str]:
    """Have the executors without a place run."""
    jobs = await led.rig.admit()
    keys = [await led.rig.key(job) for job in jobs]
    await led.rig.sync()
    await led.rig.sync(live=keys, started=keys)
    return jobs


def busy(job_id: str, waits_for: str = "") -> BusyCall:
    return BusyCall(
        call=f"{job_id}.0", waits_for=waits_for, family=FAMILY, host_id="h1", job_id=job_id, batch=1
    )


async def test_executors_in_a_long_call_are_no_room_for_others(led: Led) -> None:
    led.feeds.wait_for(1)
    assert await led.loop.run_once() == {"submitted": 1}
    (job,) = await run_all(led)
    assert await led.loop.run_once() == {}
    led.feeds.busy = [busy(job)]
    assert await led.loop.run_once() == {}, "it may end in a moment"
    (feed,) = led.feeds.feeds
    led.feeds.feeds = [msgspec.structs.replace(feed, head_age_seconds=3.0)]
    assert await led.loop.run_once() == {"submitted": 1}
    assert await led.loop.run_once() == {}


async def test_a_slot_is_lent_while_its_call_waits_for_another(led: Led) -> None:
    """PLAN-7."""
    led.feeds.wait_for(100_000)
    led.tell_mean(0.001)
    await led.loop.run_once()
    jobs = await run_all(led)
    led.feeds.busy = [busy(jobs[0], "s.0"), busy(jobs[1], "s.1"), busy(jobs[2])]
    assert await led.loop.run_once() == {"submitted": 2}
    assert await led.loop.run_once() == {}, "no more than slots were lent"
    lent = [job for job in await led.live() if is_lent(job.spec)]
    assert [(job.cpu_slots, job.spec.executor) for job in lent] == [(0, FAMILY.name)] * 2
    assert sorted(await run_all(led)) == sorted(job.id for job in lent), "on a full host"
    slots = led.controller.calls.slots
    led.feeds.busy = led.feeds.busy[1:]
    await slots.refresh_lent()
    assert sum(slots.is_surplus(job.id) for job in lent) == 1


async def test_a_family_that_no_host_lists_gets_none(led: Led) -> None:
    led.feeds.wait_for(10, Family(app="elsewhere", queue="cpu"))
    assert await led.loop.run_once() == {}
    assert await led.live() == []


async def test_executors_that_nothing_waits_for_are_withdrawn(led: Led) -> None:
    led.feeds.wait_for(1)
    assert await led.loop.run_once() == {"submitted": 1}
    led.feeds.feeds = []
    assert await led.loop.run_once() == {"withdrawn": 1}
    (job,) = await led.rig.store.jobs.list_jobs(JobFilter(executors="only"))
    assert (job.state, job.reason) == (JobState.CANCELLED, WITHDRAWN)


async def test_some_stand_ready_before_there_are_calls(led: Led) -> None:
    await led.rig.store.settings.write_cluster_settings({"executors_ahead": 1})
    await led.controller.settings.refresh()
    assert await led.loop.run_once() == {"submitted": 1}
    assert await led.loop.run_once() == {}
    (job,) = await led.live()
    assert is_ahead(job.spec)


async def test_a_refusal_is_kept_for_why_and_goes_with_the_next_success(led: Led) -> None:
    await led.rig.store.settings.put_project("default", {"quota_jobs": 0, "quota": "hard"})
    led.feeds.wait_for(1)
    assert await led.loop.run_once() == {}
    assert "quota" in led.controller.calls.refusals[FAMILY.name]
    await led.rig.store.settings.put_project("default", {"quota_jobs": 5})
    assert await led.loop.run_once() == {"submitted": 1}
    assert led.controller.calls.refusals == {}


async def test_executors_that_fail_come_more_rarely(led: Led) -> None:
    led.feeds.wait_for(1)
    for _ in range(2):
        assert await led.loop.run_once() == {"submitted": 1}
        (job,) = await led.live()
        await led.rig.fail(job.id, max_retries=0)
    assert await led.live() == []
    assert await led.loop.run_once() == {}  # two in a row: not within two seconds
    led.rig.tick(3.0)
    assert await led.loop.run_once() == {"submitted": 1}
