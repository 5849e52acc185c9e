"""What every store must do for `store.telemetry`."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.gpus import GpuTelemetry
from holdfast.core.ids import TaskKey
from holdfast.core.readings.points import Step
from holdfast.core.readings.records import RankPoint
from holdfast.core.readings.usage import RankUsage
from holdfast.moves.fleet.readings import HostReading
from tests.store.rig import OK, Rig

GIB = 1 << 30


def gpu(index: int = 0, **changes: Any) -> GpuTelemetry:
    given = {"memory_total_bytes": 80 * GIB, "memory_used_bytes": GIB, "utilisation_percent": 50.0}
    return GpuTelemetry(index=index, **{**given, **changes})


async def write(rig: Rig, *gpus: GpuTelemetry, host: str = "h1", held: float = 0.0) -> None:
    reading = HostReading(host_id=host, gpus=gpus, held_seconds=held)
    await rig.store.telemetry.write_readings([reading], now=rig.now)


async def test_the_latest_reading_is_dated_by_its_age(rig: Rig) -> None:
    await rig.host()
    assert await rig.store.telemetry.read_latest("h1") is None
    await write(rig, gpu(age_seconds=4.0), held=3.0)
    latest = await rig.store.telemetry.read_latest("h1")
    assert latest is not None
    assert (rig.now - latest.at).total_seconds() == pytest.approx(7.0)
    assert latest.gpus[0].memory_used_bytes == GIB


async def test_minutes_and_hours_hold_means_and_peaks_of_each_device(rig: Rig) -> None:
    await rig.host()
    rig.tick(-rig.now.second + 60)
    for percent, degrees in ((10.0, None), (30.0, 71.0), (None, 65.0)):
        changes = {"utilisation_percent": percent, "temperature_celsius": degrees}
        await write(rig, gpu(0, **changes), gpu(1))
        rig.tick(15)
    rig.tick(60)
    await write(rig, gpu(0))
    points = await rig.store.telemetry.read_history("h1", "minute", 3600.0, now=rig.now)
    first, other, later = points
    assert [(p.gpu, p.samples) for p in points] == [(0, 3), (1, 3), (0, 1)]
    assert (first.utilisation_percent, first.utilisation_max) == (20.0, 30.0)
    assert (first.temperature_max_celsius, other.temperature_max_celsius) == (71.0, None)
    assert (first.memory_used_max_bytes, first.memory_total_bytes) == (GIB, 80 * GIB)
    assert later.at > first.at
    hours = await rig.store.telemetry.read_history("h1", "hour", 2 * 3600.0, now=rig.now)
    assert [(p.gpu, p.samples) for p in hours] == [(0, 4), (1, 3)]


async def test_a_reading_that_is_told_again_counts_once(rig: Rig) -> None:
    await rig.host()
    await write(rig, gpu(age_seconds=0.0))
    rig.tick(5)
    await write(rig, gpu(age_seconds=5.0))
    rig.tick(5)
    await write(rig, gpu(age_seconds=9.5))
    (point,) = await rig.store.telemetry.read_history("h1", "minute", 3600.0, now=rig.now)
    assert point.samples == 1


async def test_an_unknown_host_is_left_out(rig: Rig) -> None:
    await rig.host()
    await write(rig, gpu(), host="stranger")
    assert await rig.store.telemetry.read_latest("stranger") is None
    assert await rig.store.telemetry.read_history("stranger", "hour", 9e6, now=rig.now) == []


async def test_old_minutes_go_before_old_hours(rig: Rig) -> None:
    await rig.host()
    await write(rig, gpu())
    rig.tick(2 * 86_400)
    await write(rig, gpu())
    await rig.store.telemetry.prune_telemetry(now=rig.now)
    hours = await rig.store.telemetry.read_history("h1", "hour", 9e6, now=rig.now)
    assert len(hours) == 2
    rig.tick(91 * 86_400)
    await rig.store.telemetry.prune_telemetry(now=rig.now)
    assert await rig.store.telemetry.read_history("h1", "hour", 9e8, now=rig.now) == []


def used(key: TaskKey, cores: float, memory: int = GIB) -> RankUsage:
    return RankUsage(key, cores, memory)


async def tell(rig: Rig, *ranks: RankUsage, host: str = "h1") -> None:
    reading = HostReading(host_id=host, gpus=(), ranks=ranks)
    await rig.store.telemetry.write_readings([reading], now=rig.now)


async def read_ranks(rig: Rig, job_id: str, step: Step = "minute", **more: Any) -> list[RankPoint]:
    asked = {"ranks": [0], "point_seconds": 60, **more}
    return await rig.store.telemetry.read_ranks(job_id, step, 9e8, now=rig.now, **asked)


async def test_minutes_and_hours_hold_the_means_and_peaks_of_each_rank(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    rig.tick(3600 - rig.now.minute * 60 - rig.now.second)
    for cores, memory in ((1.0, GIB), (3.0, 3 * GIB), (2.0, 2 * GIB)):
        await tell(rig, used(key, cores, memory))
        rig.tick(15)
    rig.tick(60)
    await tell(rig, RankUsage(key, 8.0, GIB, 9.5))
    first, later = await read_ranks(rig, job_id)
    assert (first.rank, first.attempt, first.samples) == (0, 1, 3)
    assert (first.cores, first.cores_max, first.memory_max_bytes) == (2.0, 3.0, 3 * GIB)
    assert (later.cores, later.cores_max, (later.at - first.at).total_seconds()) == (8.0, 9.5, 60.0)
    (wide,) = await read_ranks(rig, job_id, point_seconds=300)
    assert (wide.samples, wide.cores, wide.cores_max, wide.at) == (4, 3.5, 9.5, first.at)
    (hour,) = await read_ranks(rig, job_id, "hour", point_seconds=3600)
    assert (hour.samples, hour.cores) == (4, 3.5)
    assert await read_ranks(rig, job_id, ranks=[1]) == []
    assert await read_ranks(rig, job_id, attempt=2) == []
    assert len(await read_ranks(rig, job_id, attempt=1)) == 2
    assert await rig.store.telemetry.read_latest("h1") is None, "its GPUs were not read"


async def test_a_host_tells_only_of_the_tasks_that_are_on_it(rig: Rig) -> None:
    """FENCE-1."""
    await rig.host()
    await rig.host("h2")
    job_id, key = await rig.running()
    await tell(rig, used(key, 1.0), host="h2")
    await tell(rig, used(TaskKey(job_id, 0, key.epoch + 1), 1.0))
    await tell(rig, used(TaskKey("gone", 0, 1), 1.0), used(TaskKey(job_id, 1, key.epoch), 1.0))
    assert await read_ranks(rig, job_id) == []
    await tell(rig, used(TaskKey("gone", 0, 1), 1.0), used(key, 1.0))
    assert len(await read_ranks(rig, job_id)) == 1


async def test_old_minutes_of_ranks_go_before_old_hours(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await tell(rig, used(key, 1.0))
    rig.tick(2 * 86_400)
    await rig.store.telemetry.prune_telemetry(now=rig.now)
    assert await read_ranks(rig, job_id) == []
    assert len(await read_ranks(rig, job_id, "hour")) == 1
    rig.tick(91 * 86_400)
    await rig.store.telemetry.prune_telemetry(now=rig.now)
    assert await read_ranks(rig, job_id, "hour") == []


async def test_the_readings_of_a_job_go_with_it(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await tell(rig, used(key, 1.0))
    await rig.sync(ended=[(key, OK)])
    assert len(await read_ranks(rig, job_id, "hour")) == 1, "those of an ended job stay"
    rig.tick(86_400)
    assert await rig.store.jobs.prune(0.5, now=rig.now) == 1
    assert await read_ranks(rig, job_id, "hour") == []
