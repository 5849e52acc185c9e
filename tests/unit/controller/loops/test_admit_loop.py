"""The admission loop over a deep queue: what stands in front does not keep what fits behind it from
starting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.controller.loops import admit
from holdfast.controller.loops.admit import LIMIT, SHALLOW_LIMIT, AdmitLoop
from holdfast.controller.runtime.context import Controller
from holdfast.core.spec import JobSpec
from holdfast.moves.values import AdmissionSnapshot, NewJob
from holdfast.store.postgres.store import PostgresStore
from tests.simulated.blobs import MemoryBlobs
from tests.store.rig import Rig


class Deep:
    """One host of three slots, and more gangs of four ranks than admission reads of a queue at
    once."""

    def __init__(self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig = Rig(store)
        self.ran = 0.0
        self.limits: list[int] = []
        self.controller = Controller(store, clock=lambda: self.ran, blobs=MemoryBlobs())
        self.loop = AdmitLoop(self.controller)
        read = store.admission.read_admission

        async def noted(limit: int, **more: Any) -> AdmissionSnapshot:
            self.limits.append(limit)
            return await read(limit, **more)

        monkeypatch.setattr(store.admission, "read_admission", noted)

    async def fill(self, store: PostgresStore) -> None:
        """Submit the gangs, and then the host, so that it is not silent meanwhile."""
        self.rig.now = await store.now()
        for _ in range(LIMIT + 20):
            await self.rig.submit(tasks=4)
        self.rig.now = await store.now()
        await self.rig.host(slots=3)

    async def queue(
        self, store: PostgresStore, count: int, slots: int, queue: str = "cpu"
    ) -> list[str]:
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

    async def run(self) -> tuple[int, list[int]]:
        """How many jobs one run started, and how far it read each time."""
        self.limits.clear()
        summary = await self.loop.run_once()
        return int(summary.get("started", 0)), list(self.limits)


async def test_gangs_that_wait_for_room_do_not_freeze_what_is_behind_them(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
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
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
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
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = Deep(store, monkeypatch)
    deep.rig.now = await store.now()
    await deep.rig.host(slots=400)
    for _ in range(300):
        await deep.rig.submit()
    started, limits = await deep.run()
    assert started == 300
    assert limits == [SHALLOW_LIMIT, 8 * SHALLOW_LIMIT, LIMIT]


async def test_the_hosts_are_told_what_was_passed_over(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
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


async def test_a_plan_that_comes_late_for_its_jobs_is_made_again(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts took them first. The others of the queue do not wait for the next tick."""
    deep = Deep(store, monkeypatch)
    jobs = await deep.queue(store, 3, slots=9)
    write, refused = store.leases.reserve_and_offer, list[str]()

    async def refusing(placements: Any, *given: Any, **more: Any) -> Any:
        if not refused:
            refused.extend(placement.job_id for placement in placements)
            placements = []
        return await write(placements, *given, **more)

    monkeypatch.setattr(store.leases, "reserve_and_offer", refusing)
    started, _ = await deep.run()
    assert (started, refused) == (3, jobs)
