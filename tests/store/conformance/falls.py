"""What every store must do for `store.drains.take_fall`: a fall that is decided with its ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.core.endings.decide import Policy
from holdfast.core.endings.drain import plan_completion
from holdfast.core.facts import TaskFacts
from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import JobState
from holdfast.moves.dispatch import plan_restart
from holdfast.moves.values import DrainBegun, DrainNews, DrainSnapshot, TaskBeat
from holdfast.store.port.drains import FallTaken, Restart
from holdfast.wire.agent import LogReadOrder
from tests.store.rig import OK, STOPPED, Rig, fails


class OneFall:
    """A fall on h1, decided as the leader would decide it."""

    def __init__(self, rig: Rig, job_id: str, queue: str = "cpu", **retry: Any) -> None:
        self.rig = rig
        self.job_id = job_id
        self.queue = queue
        self.policy = Policy(retry=RetryPolicy(**{"max_retries": 9, "retry_delay": 0.0, **retry}))
        self.asked: list[DrainSnapshot] = []

    async def decide(self, drain: DrainSnapshot) -> Restart | None:
        self.asked.append(drain)
        plan = plan_completion(drain.job, drain.tasks, self.policy, (), chance=0.0)
        hosts = await self.rig.store.drains.read_open_room(self.job_id, None)
        placement = plan_restart(drain.job, drain.tasks, plan, hosts) if plan and hosts else None
        if plan is None or placement is None:
            return None
        return Restart(completion=plan, placement=placement, ttl_seconds=300.0)

    async def take(
        self, ended: Sequence[tuple[TaskKey, TaskFacts]], **more: Any
    ) -> FallTaken | None:
        sync = self.rig.make_sync(ended=tuple(ended), **more)
        return await self.rig.store.drains.take_fall(sync, self, now=self.rig.now)


def _end(keys: Sequence[TaskKey]) -> list[tuple[TaskKey, TaskFacts]]:
    return [(keys[0], fails()), *((key, STOPPED) for key in keys[1:])]


async def _describe(rig: Rig, job_id: str) -> dict[str, Any]:
    """Everything on record of a job but its id."""
    job = await rig.job(job_id)
    unlike = ("id", "job_id", "revision", "event_id")
    records = [
        job,
        *await rig.store.jobs.list_tasks(job_id),
        *await rig.store.jobs.list_attempts(job_id),
        *await rig.events(job_id),
    ]
    return {
        f"{number} {type(record).__name__}.{name}": getattr(record, name)
        for number, record in enumerate(records)
        for name in record.__struct_fields__
        if name not in unlike
    }


@pytest.mark.parametrize("beside", [False, True])
async def test_a_fall_is_what_three_transactions_would_write(rig: Rig, beside: bool) -> None:
    """FALL-2. beside: another job lives on there, which the same sync renews."""
    await rig.host(slots=2 + beside)
    live = [(await rig.running("beside"))[1]] if beside else []
    first, keys = await rig.running_gang(2)
    beat = TaskBeat(key=keys[1], step=7, total=9, age_seconds=2.0)
    await rig.sync(live=live, ended=_end(keys), beats=[beat])
    (read,) = await rig.store.drains.list_drains(9)
    assert await rig.restart() == [first]
    told = await _describe(rig, first)
    going = [task.key for task in await rig.store.jobs.list_tasks(first)]
    await rig.store.jobs.cancel_job(first, "enough", now=rig.now)
    await rig.sync(live=live, ended=[(key, STOPPED) for key in going])
    await rig.complete()

    news: list[DrainNews] = []
    rig.store.drains.watch_drains(news.extend)
    second, keys = await rig.running_gang(2)
    fall = OneFall(rig, second)
    beat = TaskBeat(key=keys[1], step=7, total=9, age_seconds=2.0)
    taken = await fall.take(_end(keys), live=tuple(live), beats=(beat,))
    assert taken is not None
    assert (taken.started, taken.synced.fell, taken.synced.draining) == (True, True, ())
    assert sorted(taken.synced.acked) == sorted(keys)
    assert [key for key, _ in taken.synced.renewed] == live
    assert news == [], "its begin was told to be completed by another"
    assert [item.job_id for item in taken.news if isinstance(item, DrainBegun)] == [second]
    (drain,) = fall.asked
    same = [
        (
            msgspec.structs.replace(one.job, id="", revision=0),
            [msgspec.structs.replace(task, job_id="") for task in one.tasks],
        )
        for one in (read, drain)
    ]
    assert same[0] == same[1]
    found = await _describe(rig, second)
    assert {k: v for k, v in found.items() if told.get(k) != v} == {}
    assert found.keys() == told.keys()
    tasks = await rig.store.jobs.list_tasks(second)
    assert [offer.task.key for offer in taken.synced.offers] == [task.key for task in tasks]
    assert {len(offer.seats) for offer in taken.synced.offers} == {2}
    heard = [*live, *(task.key for task in tasks)]
    assert (await rig.sync(live=heard)).offers == ()
    assert await fall.take(_end(keys), live=tuple(live)) is None, "the same ends again"


async def test_the_answer_to_a_fall_says_that_a_reader_waits(rig: Rig) -> None:
    host = await rig.host(slots=2)
    order = LogReadOrder(id="r1", key=TaskKey("other", 0, 1), stream="stdout", offset=0, length=100)
    for waits in (False, True):
        job_id, keys = await rig.running_gang(2)
        if waits:
            await rig.store.logs.ask_log_read(host, order)
        taken = await OneFall(rig, job_id).take(_end(keys))
        assert taken is not None
        assert taken.synced.reads is waits
        await rig.store.jobs.cancel_job(job_id, "enough", now=rig.now)
        going = [task.key for task in await rig.store.jobs.list_tasks(job_id)]
        await rig.sync(ended=[(key, STOPPED) for key in going])
        await rig.complete()


@pytest.mark.parametrize(
    "why",
    [
        "a rank has succeeded", "a rank lives on", "another epoch", "another queue", "paused",
        "kill switch", "quota", "later", "no decision", "drained host", "stale", "stuck",
        "faults", "an order unheard", "draining", "supervised", "elsewhere",
    ],
)  # fmt: skip
async def test_a_fall_that_more_decides_is_left_alone(rig: Rig, why: str) -> None:
    """Nothing is written then, and the three transactions find all as it was."""
    await rig.host(slots=3)
    job_id, keys = await rig.running_gang(2, supervised=why == "supervised")
    settings, ends, more = rig.store.settings, _end(keys), dict[str, Any]()
    if why == "a rank has succeeded":
        ends[1] = (keys[1], OK)
    elif why == "a rank lives on":
        ends.pop()
    elif why == "another epoch":
        ends[1] = (msgspec.structs.replace(keys[1], epoch=9), STOPPED)
    elif why == "paused":
        await settings.pause_queue("cpu", "now", hard=False, now=rig.now)
    elif why == "kill switch":
        await settings.write_cluster_settings({"retries_enabled": False}, now=rig.now)
    elif why == "quota":
        await settings.put_project("default", {"quota_jobs": 9}, now=rig.now)
    elif why == "drained host":
        await rig.store.hosts.move_host("h1", "drain", "service", now=rig.now)
    elif why == "stale":
        more["incarnation"] = "another"
    elif why == "stuck":
        ends[0] = (keys[0], TaskFacts(signal=9, unkillable=True))
    elif why == "faults":
        more["faults"] = (Hindrance(part="starts", reason="no room"),)
    elif why == "an order unheard":
        assert await rig.submit() in await rig.admit()
    elif why == "draining":
        await rig.store.jobs.cancel_job(job_id, "enough", now=rig.now)
    elif why == "elsewhere":
        await rig.host("h2", slots=3)
    fall = OneFall(
        rig,
        job_id,
        queue="gpu" if why == "another queue" else "cpu",
        retry_delay=60.0 if why == "later" else 0.0,
        max_retries=0 if why == "no decision" else 9,
    )
    before = await _describe(rig, job_id)
    assert await fall.take(ends, **more) is None
    assert await _describe(rig, job_id) == before
    assert (await rig.job(job_id)).state in (JobState.RUNNING, JobState.DRAINING)
