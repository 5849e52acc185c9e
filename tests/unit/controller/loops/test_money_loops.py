"""Budgets and idle GPUs as the leader judges them, on a store whose ledger is closed for real."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from holdfast.controller.loops.ledger.ledger import LedgerLoop
from holdfast.controller.loops.money.budgets import BudgetsLoop
from holdfast.controller.loops.money.idle import IdleGpusLoop
from holdfast.controller.report.sums import find_effect, read_prices, read_report
from holdfast.controller.runtime.context import Controller
from holdfast.core.causes import Cause
from holdfast.core.ids import TaskKey
from holdfast.core.ledger.tally import Tally
from holdfast.core.ledger.values import Step
from holdfast.core.records import EventRecord
from holdfast.core.report.budgets import Spend
from holdfast.core.report.money import HostPrice, PriceEffect
from holdfast.core.report.rows import HoursReport
from holdfast.core.states import JobState
from holdfast.errors import ValidationError
from holdfast.moves.values import TaskBeat
from tests.simulated.blobs import MemoryBlobs
from tests.store.rig import START, STOPPED, Rig


class Leader:
    """What the leader does each minute, on a store that is told the rig's time."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.controller = Controller(rig.store, blobs=MemoryBlobs())
        self.budgets = BudgetsLoop(self.controller)
        self.idle = IdleGpusLoop(self.controller)
        self.told: dict[TaskKey, Tally] = {}
        self.beats: dict[TaskKey, TaskBeat] = {}

    async def set(self, project: str, **changes: Any) -> None:
        await self.rig.store.settings.put_project(project, changes)
        await self.controller.settings.refresh()

    async def pass_minutes(self, count: int) -> None:
        """Let minutes go by, in which every running task goes on with what it does."""
        for _ in range(count):
            self.rig.tick(60)
            for key, tally in self.told.items():
                ms = {**tally.ms, tally.now: tally.ms.get(tally.now, 0) + 60_000}
                self.told[key] = msgspec.structs.replace(tally, ms=ms)
            sync = self.rig.make_sync(
                live=tuple(self.told),
                started=tuple(self.told),
                tallies=tuple(self.told.items()),
                beats=tuple(self.beats.values()),
            )
            await self.rig.store.leases.sync_hosts([sync])
            await self.run()

    async def run(self) -> None:
        for _ in range(2):  # the first one makes the cursor
            await LedgerLoop(self.controller).run_once()
        await self.budgets.run_once()
        await self.idle.run_once()

    async def start(self, does: str = "kept", **spec: Any) -> tuple[str, TaskKey]:
        job_id, key = await self.rig.running(**spec)
        self.told[key] = Tally(now=does, beaten=does != "unmeasured_idle")
        return job_id, key

    def does(self, key: TaskKey, now: str) -> None:
        self.told[key] = msgspec.structs.replace(self.told[key], now=now)

    async def events(self, kind: str) -> list[EventRecord]:
        return [event for event in await self.rig.events() if event.kind == kind]


@pytest.fixture
async def leader(told_rig: Rig) -> Leader:
    made = Leader(told_rig)
    await told_rig.host("h1", gpus=4, slots=9)
    await told_rig.store.settings.write_cluster_settings({"gpu_hour_usd": 6.0})
    await made.run()
    return made


async def test_a_budget_is_told_at_80_percent_and_holds_at_100(leader: Leader) -> None:
    """2 GPUs at 6 $ an hour: 0.2 $ a minute. A month's budget of 1 $ is told of at 0.8 $."""
    rig = leader.rig
    await leader.set("p", budget_usd_per_month=1.0, at_budget="hold", notify="ops")
    ran, _ = await leader.start(project="p", gpus=2)
    await leader.pass_minutes(3)
    assert await leader.events("project.budget") == []
    await leader.pass_minutes(1)
    (near,) = await leader.events("project.budget")
    assert near.message.endswith("(80 %); at 100 % no further job of it starts")
    assert (near.project, near.data["percent"], near.data["notify"]) == ("p", 80, "ops")
    waits = await rig.submit(project="p")
    await leader.pass_minutes(1)
    _, full = await leader.events("project.budget")
    assert full.data["percent"] == 100
    assert await rig.admit() == []
    project = await rig.store.settings.get_project("p")
    assert project.held.startswith("project p has spent its budget of $1.00 for March 2026")
    assert (await rig.job(ran)).state is JobState.RUNNING
    await leader.pass_minutes(3)
    assert len(await leader.events("project.budget")) == 2
    await leader.set("p", budget_usd_per_month=100.0)
    await leader.run()
    assert await rig.admit() == [waits]


async def test_preempt_stops_what_runs_and_it_waits_at_no_charge(leader: Leader) -> None:
    rig = leader.rig
    await leader.set("p", budget_usd_per_month=0.3, at_budget="preempt")
    job_id, key = await leader.start(project="p", gpus=2)
    other, _ = await leader.start(project="q", gpus=1)
    await leader.pass_minutes(4)
    job = await rig.job(job_id)
    assert (job.state, job.drain_cause) == (JobState.DRAINING, Cause.PREEMPTED)
    assert "has spent its budget of $0.30" in (job.drain_reason or "")
    assert (await rig.job(other)).state is JobState.RUNNING
    del leader.told[key]
    await rig.sync(ended=[(key, STOPPED)])
    await rig.complete()
    job = await rig.job(job_id)
    assert (job.state, job.retries_charged) == (JobState.QUEUED, 0)
    assert await rig.admit() == []


async def test_a_new_month_lets_jobs_start_again(leader: Leader) -> None:
    rig = leader.rig
    await leader.set("p", budget_usd_per_month=0.1, at_budget="hold")
    _, key = await leader.start(project="p", gpus=2)
    await leader.pass_minutes(3)
    waits = await rig.submit(project="p")
    assert await rig.admit() == []
    del leader.told[key]
    await rig.sync(ended=[(key, STOPPED)])
    rig.now = rig.now.replace(month=4, day=1, hour=0, minute=1)
    await leader.run()
    await rig.sync()
    assert await rig.admit() == [waits]


async def test_a_project_whose_budget_is_taken_away_is_released(leader: Leader) -> None:
    rig = leader.rig
    await leader.set("p", budget_usd_per_month=0.1, at_budget="hold")
    await leader.start(project="p", gpus=2)
    await leader.pass_minutes(2)
    assert (await rig.store.settings.get_project("p")).held
    await rig.store.settings.put_project("p", {}, ["budget_usd_per_month"])
    await leader.controller.settings.refresh()
    await leader.run()
    assert await rig.store.money.read_spends() == {"p": Spend()}


async def test_idle_gpus_are_told_of_and_then_given_back(leader: Leader) -> None:
    """HELD-3"""
    rig = leader.rig
    await leader.set("p", idle_gpus="drain", idle_gpus_seconds=300, idle_gpus_drain_seconds=180)
    job_id, key = await leader.start(project="p", gpus=2)
    await leader.pass_minutes(3)
    leader.does(key, "idle")
    await leader.pass_minutes(4)
    assert await leader.events("job.idle_gpus") == []
    await leader.pass_minutes(1)
    (event,) = await leader.events("job.idle_gpus")
    assert event.job_id == job_id
    assert event.message == (
        "it holds 2 GPUs that did nothing for 5 min, which cost $1.00; unless they work, "
        "it is stopped in 3 min and queued again"
    )
    (known,) = await rig.store.money.read_idle_gpus()
    assert (known.job_id, known.seconds, known.usd) == (job_id, 300.0, pytest.approx(1.0))
    assert (await rig.job(job_id)).state is JobState.RUNNING
    await leader.pass_minutes(3)
    job = await rig.job(job_id)
    assert (job.state, job.drain_cause) == (JobState.DRAINING, Cause.PREEMPTED)
    assert "it is queued again (idle_gpus=drain)" in (job.drain_reason or "")
    assert await rig.store.money.read_idle_gpus() == []
    del leader.told[key]
    await rig.sync(ended=[(key, STOPPED)])
    await rig.complete()
    job = await rig.job(job_id)
    assert (job.state, job.retries_charged) == (JobState.QUEUED, 0)


async def test_a_new_leader_goes_on_where_the_last_one_was(leader: Leader) -> None:
    await leader.set("p", idle_gpus_seconds=300)
    job_id, _ = await leader.start("unmeasured_idle", project="p", gpus=1)
    await leader.pass_minutes(3)
    leader.idle = IdleGpusLoop(leader.controller)
    await leader.pass_minutes(4)
    (event,) = await leader.events("job.idle_gpus")
    assert event.job_id == job_id


@pytest.mark.parametrize("spec", [{"attended": True}, {"terminal": True}])
async def test_a_job_at_which_a_person_sits_is_left_alone(
    leader: Leader, spec: dict[str, Any]
) -> None:
    """HELD-2"""
    await leader.set("p", idle_gpus="drain", idle_gpus_seconds=60, idle_gpus_drain_seconds=60)
    job_id, _ = await leader.start("idle", project="p", gpus=1, **spec)
    await leader.pass_minutes(6)
    assert await leader.events("job.idle_gpus") == []
    assert (await leader.rig.job(job_id)).state is JobState.RUNNING


async def test_a_job_that_runs_once_is_told_of_and_never_stopped(leader: Leader) -> None:
    """HELD-2: it could not be queued again, so its end would be for good."""
    await leader.set("p", idle_gpus="drain", idle_gpus_seconds=60, idle_gpus_drain_seconds=60)
    job_id, _ = await leader.start("idle", project="p", gpus=1, interactive=True)
    await leader.pass_minutes(6)
    (event,) = await leader.events("job.idle_gpus")
    assert "stopped" not in event.message
    assert (await leader.rig.job(job_id)).state is JobState.RUNNING


async def test_a_job_in_a_section_is_left_alone_and_counts_anew_after_it(leader: Leader) -> None:
    """HELD-1: an evaluation on the CPU leaves the GPUs idle by intent."""
    await leader.set("p", idle_gpus_seconds=180)
    _, key = await leader.start("idle", project="p", gpus=1)
    leader.beats[key] = TaskBeat(key=key, step=1, total=None, age_seconds=0.0, section="eval")
    await leader.pass_minutes(6)
    assert await leader.events("job.idle_gpus") == []
    leader.beats[key] = msgspec.structs.replace(leader.beats[key], section=None)
    await leader.pass_minutes(2)
    assert await leader.events("job.idle_gpus") == []
    await leader.pass_minutes(2)
    assert len(await leader.events("job.idle_gpus")) == 1


async def test_the_report_adds_up_and_prices_each_host(leader: Leader) -> None:
    rig = leader.rig
    kept, _ = await leader.start(project="p", gpus=2, name="train")
    await leader.start("idle", project="q", gpus=1)
    await leader.pass_minutes(5)
    found = await read_report(
        rig.store,
        await read_prices(rig.store),
        START - timedelta(hours=1),
        rig.now,
        by=("job",),
        step="day",
        unit="gpu",
        filters={},
        limit=10,
    )
    first = found.rows[0]
    assert (first.key, first.name, first.goodput) == ((kept,), "train", 1.0)
    assert first.usd == pytest.approx(6.0 * first.hours)
    assert first.useful_usd == pytest.approx(first.usd)
    whole = found.total.hours + sum(found.total.idle_hours.values())
    closed = await rig.store.money.read_closed()
    assert closed is not None
    assert whole == pytest.approx(4 * (closed - START).total_seconds() / 3600)
    assert found.total.lost_usd == pytest.approx(6.0 * found.total.by_name["idle"])
    assert found.total.provisional


async def read_by_time(leader: Leader, step: Step, zone: str | None = None) -> HoursReport:
    return await read_report(
        leader.rig.store,
        await read_prices(leader.rig.store),
        leader.rig.now - timedelta(seconds=170),
        leader.rig.now - timedelta(seconds=80),
        by=("time",),
        step=step,
        unit="gpu",
        filters={},
        limit=10,
        zone=None if zone is None else ZoneInfo(zone),
    )


@pytest.mark.parametrize("zone", [None, "Europe/Berlin", "Asia/Kolkata"])
@pytest.mark.parametrize("step", ["minute", "hour", "day"])
async def test_a_span_has_the_same_hours_into_whatever_it_is_cut(
    leader: Leader, step: Step, zone: str | None
) -> None:
    """SPAN-1: and the report names the whole minutes that it counted."""
    await leader.start(project="p", gpus=2)
    await leader.pass_minutes(6)
    found = await read_by_time(leader, step, zone)
    minutes = (found.until - found.since).total_seconds() / 60
    assert minutes == 2  # 90 seconds were asked for, which lie in two minutes
    assert sum(found.total.by_name.values()) == pytest.approx(2 * minutes / 60)
    assert sum(row.usd for row in found.rows) == pytest.approx(6 * 2 * minutes / 60)
    first = datetime.fromisoformat(found.rows[0].key[0])
    local = found.since.astimezone(ZoneInfo(found.zone))
    if step == "day":
        assert first == local.replace(hour=0, minute=0)
    assert first.utcoffset() == local.utcoffset()


async def test_taking_a_price_away_lifts_no_budget_for_hours_that_had_it(leader: Leader) -> None:
    """PRICE-4"""
    rig = leader.rig
    await leader.set("p", budget_usd_per_month=0.5, at_budget="hold")
    await leader.start(project="p", gpus=2)
    await leader.pass_minutes(4)
    (before,) = (s for s in (await rig.store.money.read_spends()).values() if s.usd)
    assert before.held
    await rig.store.settings.write_cluster_settings({}, ["gpu_hour_usd"])
    await leader.controller.settings.refresh()
    await leader.pass_minutes(3)
    (after,) = (s for s in (await rig.store.money.read_spends()).values() if s.usd)
    assert after.held
    assert before.usd <= after.usd <= before.usd + 0.25  # the minute at which it was taken away
    changes = [event.data for event in await leader.events("price.changed")]
    assert [(c["gpu_hour_usd_before"], c["gpu_hour_usd"]) for c in changes] == [
        (None, 6),
        (6, None),
    ]


async def test_a_price_of_an_earlier_time_says_first_what_it_does(leader: Leader) -> None:
    """PRICE-4"""
    rig, money = leader.rig, leader.rig.store.money
    await leader.set("p", budget_usd_per_month=5.0, at_budget="hold")
    await leader.start(project="p", gpus=2)
    await leader.pass_minutes(5)
    since = rig.now - timedelta(minutes=4)
    price = HostPrice(host="", gpu_hour_usd=60.0, since=since)
    settings = await leader.controller.settings.current()
    effect = await find_effect(rig.store, settings, price, since, rig.now)
    assert effect.after_usd == pytest.approx(10 * effect.before_usd)
    assert effect.crossed == (f"project p has spent ${_spent(effect, 6.0):,.2f} of $5.00",)
    assert len(await money.read_prices()) == 2, "it was only asked"
    await money.set_price(price)
    await leader.controller.settings.refresh()
    await leader.run()
    assert len(await money.read_prices()) == 3, "the leader sees nothing to change"
    (spend,) = (s for s in (await money.read_spends()).values() if s.usd)
    assert spend.held
    settings = await leader.controller.settings.current()
    assert settings.value("gpu_hour_usd") == 60.0
    with pytest.raises(ValidationError):
        await money.set_price(HostPrice(host="nobody", gpu_hour_usd=1.0))


def _spent(effect: PriceEffect, before: float) -> float:
    """What p spent: what it costs since then, and one minute of two GPUs at the price before."""
    return effect.after_usd + before * 2 / 60
