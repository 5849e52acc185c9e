"""The admission loop over a deep queue: what stands in front does not keep what fits behind it from
starting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast.controller.loops import admit
from holdfast.controller.loops.admit import LIMIT, SHALLOW_LIMIT, SPLIT_JOBS, AdmitLoop
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.wakes import HostLine, WaitingRoom
from holdfast.core.spec import JobSpec
from holdfast.errors import Unavailable
from holdfast.moves.values import AdmissionSnapshot, NewJob
from holdfast.store.port.store import Store
from tests.store.rig import Rig

pytestmark = pytest.mark.parametrize("store", ["memory", "postgres"], indirect=True)


class Deep:
    """One host of three slots, and more gangs of four ranks than admission reads of a queue at
    once."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig = Rig(store)
        self.ran = 0.0
        self.limits: list[int] = []
        self.rooms_known: list[bool] = []
        self.controller = Controller(store, clock=lambda: self.ran)
        self.loop = AdmitLoop(self.controller)
        read = store.admission.read_admission

        async def noted(limit: int, **more: Any) -> AdmissionSnapshot:
            self.limits.append(limit)
            self.rooms_known.append(more.get("hosts") is not None)
            return await read(limit, **more)

        monkeypatch.setattr(store.admission, "read_admission", noted)

    async def fill(self, store: Store) -> None:
        self.rig.now = await store.now()
        await self.rig.host(slots=3)
        for _ in range(LIMIT + 20):
            await self.rig.submit(tasks=4)

    async def queue(self, store: Store, count: int, slots: int, queue: str = "cpu") -> list[str]:
        """Submit jobs of one task at once, and then a host, so that it is not silent meanwhile."""
        jobs = [
            NewJob(id=f"{queue}-{n:05d}", spec=JobSpec(argv=("true",)), queue=queue)
            for n in range(count)
        ]
        await store.settings.put_queue(queue, {})
        await store.jobs.submit_jobs(jobs)
        self.rig.now = await store.now()
        await self.rig.host(slots=slots)
        return [job.id for job in jobs]

    async def queue_lanes(self, store: Store) -> list[str]:
        """Submit to two queues, so that a round is deep enough to be written in parts."""
        jobs = [
            job
            for lane in ("lane-0", "lane-1")
            for job in await self.queue(store, SPLIT_JOBS, slots=SPLIT_JOBS, queue=lane)
        ]
        for name in ("h2", "h3"):
            await self.rig.host(name, slots=SPLIT_JOBS)
        return jobs

    async def run(self) -> tuple[int, list[int]]:
        """How many jobs one run started, and how far it read each time."""
        self.limits.clear()
        summary = await self.loop.run_once()
        return int(summary.get("started", 0)), list(self.limits)


async def test_gangs_that_wait_for_room_do_not_freeze_what_is_behind_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = Deep(store, monkeypatch)
    await deep.fill(store)
    small = [await deep.rig.submit(priority=10) for _ in range(2)]
    started, limits = await deep.run()
    assert started == 2
    assert limits[:2] == [SHALLOW_LIMIT, LIMIT]
    assert limits[2] > LIMIT
    assert [(await deep.rig.job(job_id)).state for job_id in small] == ["reserved"] * 2
    # A slot is left that no job in front fits: the look at the whole queue costs much, and waits for
    # its turn.
    assert await deep.run() == (0, [SHALLOW_LIMIT, LIMIT])
    last = await deep.rig.submit()
    assert await deep.run() == (0, [SHALLOW_LIMIT, LIMIT])
    deep.ran += AdmitLoop.interval_seconds
    started, limits = await deep.run()
    assert started == 1
    assert max(limits) > LIMIT
    assert (await deep.rig.job(last)).state == "reserved"
    assert await deep.run() == (0, [SHALLOW_LIMIT]), "no host has anything left"
    assert await deep.run() == (0, [SHALLOW_LIMIT])
    deep.ran += AdmitLoop.interval_seconds
    assert await deep.run() == (0, [SHALLOW_LIMIT, LIMIT]), (
        "once an interval, all that `why` tells of"
    )
    assert await deep.run() == (0, [SHALLOW_LIMIT])


async def test_more_jobs_that_cannot_start_than_one_look_reads_shut_out_none_behind_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One array with a wrong label stopped its queue: the deepest look read the first 10,000 jobs."""
    monkeypatch.setattr(admit, "DEEP_LIMIT", LIMIT + 100)
    deep = Deep(store, monkeypatch)
    nowhere = JobSpec(argv=("true",), host_labels={"nosuch": "1"})
    jobs = [NewJob(id=f"a-{n:05d}", spec=nowhere, queue="cpu") for n in range(LIMIT + 350)]
    await store.jobs.submit_jobs(jobs)
    deep.rig.now = await store.now()
    await deep.rig.host(slots=3)
    last = await deep.rig.submit("z")
    started, _ = await deep.run()
    assert started == 1
    assert (await deep.rig.job(last)).state == "reserved"
    refusals = deep.controller.refusals
    for blocked in ("a-00000", f"a-{LIMIT + 50:05d}"):
        assert "carries the labels nosuch=1" in str(refusals.find(blocked)), blocked


async def test_many_slots_are_filled_in_a_few_readings(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = Deep(store, monkeypatch)
    deep.rig.now = await store.now()
    await deep.rig.host(slots=400)
    for _ in range(300):
        await deep.rig.submit()
    started, limits = await deep.run()
    assert started == 300
    assert limits == [SHALLOW_LIMIT, 8 * SHALLOW_LIMIT, LIMIT]


@contextlib.contextmanager
def waiting(controller: Controller, *host_ids: str) -> Iterator[list[HostLine]]:
    """Have polls of these hosts wait, each with slots free."""
    lines = [controller.wakes.host(host_id) for host_id in host_ids]
    with contextlib.ExitStack() as polls:
        for line in lines:
            line.room = WaitingRoom(cpu_slots=64, devices=0, queues=())
            polls.enter_context(line.wait())
        yield lines


async def test_a_deep_queue_is_left_to_the_hosts_that_wait(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WAKE-4: as long as they take, because a host may be kept from that."""
    deep = Deep(store, monkeypatch)
    await deep.queue(store, 200, slots=64)
    with waiting(deep.controller, "h1") as (line,):
        assert await deep.run() == (0, [SHALLOW_LIMIT])
        assert line.is_called
        took = len((await deep.rig.sync("h1", takes=True)).offers)
        assert await deep.run() == (0, [SHALLOW_LIMIT])
        started, _ = await deep.run()
        assert started == 64 - took


async def test_hosts_that_do_not_wait_are_planned_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = Deep(store, monkeypatch)
    await deep.queue(store, 200, slots=64)
    await deep.rig.host("h2", slots=64)
    with waiting(deep.controller, "h1"):
        started, _ = await deep.run()
    assert started == 128


@pytest.mark.parametrize("some", [{"gpus": 1}, {"tasks": 2}])
async def test_what_a_plan_places_better_is_not_left_to_hosts(
    store: Store, monkeypatch: pytest.MonkeyPatch, some: dict[str, Any]
) -> None:
    deep = Deep(store, monkeypatch)
    deep.rig.now = await store.now()
    await deep.rig.host(slots=64, gpus=SHALLOW_LIMIT)
    await deep.rig.submit(**some)
    for _ in range(SHALLOW_LIMIT):
        await deep.rig.submit()
    with waiting(deep.controller, "h1") as (line,):
        started, _ = await deep.run()
    assert (started, line.is_called) == (SHALLOW_LIMIT + 1, False)


async def test_the_hosts_are_told_what_was_passed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = Deep(store, monkeypatch)
    deep.rig.now = await store.now()
    await deep.rig.host(slots=2)
    await deep.rig.submit(priority=90)
    gangs = [await deep.rig.submit(tasks=2) for _ in range(2)]
    said: list[tuple[list[str], bool]] = []

    async def note_passed(job_ids: Sequence[str], *, holds: bool, now: Any = None) -> None:
        said.append((list(job_ids), holds))

    monkeypatch.setattr(store.admission, "note_passed", note_passed)
    await deep.run()
    assert said[-1] == (gangs, False)
    await store.settings.write_cluster_settings({"hold_back_seconds": 0})
    await deep.controller.settings.refresh()
    await deep.run()
    assert said[-1][1], "room is held back for the first gang"
    await store.settings.put_project("team", {"quota_jobs": 9})
    await deep.controller.settings.refresh()
    said.clear()
    await deep.run()
    assert said == [], "no host takes anything"


async def test_the_next_round_is_planned_while_one_is_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = Deep(store, monkeypatch)
    jobs = await deep.queue(store, 3 * LIMIT, slots=9 * LIMIT)
    write, writes = store.leases.reserve_and_offer, list[list[str]]()
    read: list[int] = []

    async def noted(placements: Any, *given: Any, **more: Any) -> Any:
        for _ in range(1000):
            if len(placements) < LIMIT or len(deep.limits) >= len(writes) + 2:
                break
            await asyncio.sleep(0)
        read.append(len(deep.limits))
        applied, answers = await write(placements, *given, **more)
        writes.append(list(applied))
        return applied, answers

    monkeypatch.setattr(store.leases, "reserve_and_offer", noted)
    started, _ = await deep.run()
    assert started == len(jobs)
    assert [job_id for applied in writes for job_id in applied] == jobs, "each once, in order"
    assert read[:4] == [1, 2, 4, 5], "one reading more than writings, from the first deep one on"


async def test_the_room_is_read_again_once_an_interval(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between, it is what the rounds before leave, because a reading goes over all live tasks."""
    deep = Deep(store, monkeypatch)
    jobs = await deep.queue(store, 5 * LIMIT, slots=9 * LIMIT)
    write, pace = store.leases.reserve_and_offer, 0.0

    async def slow(placements: Any, *given: Any, **more: Any) -> Any:
        deep.ran += pace
        return await write(placements, *given, **more)

    monkeypatch.setattr(store.leases, "reserve_and_offer", slow)
    started, _ = await deep.run()
    assert started == len(jobs)
    assert deep.rooms_known[:8] == [False, False, False, True, True, True, True, True]
    deep.rooms_known.clear()
    pace, more = deep.loop.interval_seconds / 2, 4 * LIMIT
    jobs = await deep.queue(store, more, slots=9 * LIMIT, queue="other")
    started, _ = await deep.run()
    assert started == more
    assert True in deep.rooms_known[3:]
    assert False in deep.rooms_known[4:-1]


async def test_a_round_that_was_not_written_whole_is_not_built_upon(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first round's jobs come before those behind them, as soon as the store takes them."""
    deep = Deep(store, monkeypatch)
    jobs = await deep.queue(store, 3 * LIMIT, slots=9 * LIMIT)
    write, writes = store.leases.reserve_and_offer, list[list[str]]()
    refused: list[str] = []

    async def refusing(placements: Any, *given: Any, **more: Any) -> Any:
        if len(placements) == LIMIT and not refused:
            refused.append(placements[0].job_id)
            placements = placements[1:]
        applied, answers = await write(placements, *given, **more)
        writes.append(list(applied))
        return applied, answers

    monkeypatch.setattr(store.leases, "reserve_and_offer", refusing)
    started, _ = await deep.run()
    assert started == len(jobs)
    (at,) = [n for n, applied in enumerate(writes) if refused[0] in applied]
    assert writes[at][0] == refused[0]
    assert len([job for applied in writes[:at] for job in applied]) < 2 * LIMIT


async def test_a_large_round_is_written_on_different_hosts_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = Deep(store, monkeypatch)
    jobs = await deep.queue_lanes(store)
    write, under_way, together = store.leases.reserve_and_offer, list[set[str]](), [0]

    async def noted(placements: Any, *given: Any, **more: Any) -> Any:
        hosts = {task.host_id for placement in placements for task in placement.tasks}
        assert not any(hosts & others for others in under_way), "it would wait for the other"
        under_way.append(hosts)
        together.append(len(under_way))
        await asyncio.sleep(0)
        found = await write(placements, *given, **more)
        under_way.remove(hosts)
        return found

    monkeypatch.setattr(store.leases, "reserve_and_offer", noted)
    started, _ = await deep.run()
    assert max(together) > 1
    assert started == len(jobs)
    assert {(await deep.rig.job(jobs[at])).state for at in (0, -1)} == {"reserved"}


async def test_a_part_that_is_not_written_leaves_the_other_and_nothing_running(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = Deep(store, monkeypatch)
    jobs = await deep.queue_lanes(store)
    write, failed, wrote = store.leases.reserve_and_offer, list[str](), list[str]()

    async def failing(placements: Any, *given: Any, **more: Any) -> Any:
        if len(placements) >= LIMIT and not failed:
            failed.extend(placement.job_id for placement in placements)
            raise Unavailable("the database is gone")
        applied, answers = await write(placements, *given, **more)
        wrote.extend(applied)
        return applied, answers

    monkeypatch.setattr(store.leases, "reserve_and_offer", failing)
    before = asyncio.all_tasks()
    with pytest.raises(Unavailable):
        await deep.run()
    assert asyncio.all_tasks() <= before
    assert {(await deep.rig.job(job_id)).state for job_id in failed[:3]} == {"queued"}
    assert {(await deep.rig.job(job_id)).state for job_id in wrote[-3:]} == {"reserved"}
    await deep.run()
    assert sorted(wrote) == jobs, "each once, and the others later"


async def test_a_write_that_fails_ends_the_run_when_the_reading_beside_it_has_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = Deep(store, monkeypatch)
    await deep.queue(store, 2 * LIMIT, slots=3 * LIMIT)
    write = store.leases.reserve_and_offer

    async def failing(placements: Any, *given: Any, **more: Any) -> Any:
        if len(placements) == LIMIT:
            raise Unavailable("the database is gone")
        return await write(placements, *given, **more)

    monkeypatch.setattr(store.leases, "reserve_and_offer", failing)
    before = asyncio.all_tasks()
    with pytest.raises(Unavailable):
        await deep.run()
    assert asyncio.all_tasks() <= before
