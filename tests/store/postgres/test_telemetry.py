"""What every store must do for `store.telemetry`."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.gpus import GpuTelemetry
from holdfast.moves.fleet.readings import HostReading
from tests.store.rig import Rig

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
