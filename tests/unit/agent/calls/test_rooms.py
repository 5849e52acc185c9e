"""How much memory an executor's devices have for a model: ROOM-1…3."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.calls.rooms import GIB, ModelRooms, find_device_room, find_room_gb
from holdfast.agent.probes.devices import Device, DeviceProcess, read_for_task
from holdfast.agent.probes.real import RealProbe
from holdfast.agent.probes.worker_client import ProbeWorker
from tests.unit.agent.calls.test_executors import Rig
from tests.waits import in_time

OWN, OTHER = {100, 101}, st.integers(200, 299)
SIZES = st.integers(0, 20 * GIB)


def device(total_gb: float, *processes: tuple[int, int | None], used: int | None = None) -> Device:
    """A device whose driver lists processes by pid and bytes."""
    listed = [DeviceProcess(pid=pid, memory_bytes=size) for pid, size in processes]
    known = sum(size or 0 for _, size in processes)
    return Device(
        index=0,
        memory_total_bytes=int(total_gb * GIB),
        memory_used_bytes=known if used is None else used,
        processes=listed,
    )


def room(found: Device, declared_gb: float | None = 0.0) -> int | None:
    own = read_for_task(found, OWN, pids_are_ours=True)
    return find_device_room(found, own, declared_gb, available_bytes=7 * GIB)


@given(
    own=st.lists(SIZES, max_size=2),
    others=st.dictionaries(OTHER, SIZES, max_size=4),
    reserve=st.integers(0, GIB),
    declared=st.none() | st.floats(0, 40),
)
def test_what_others_leave_is_room_whatever_the_executor_holds_itself(
    own: list[int], others: dict[int, int], reserve: int, declared: float | None
) -> None:
    mine = list(zip(sorted(OWN), own, strict=False))
    used = sum(own) + sum(others.values()) + reserve
    found = device(200, *mine, *others.items(), used=used)
    assert room(found, declared) == 200 * GIB - sum(others.values())


@given(used=SIZES, declared=st.floats(0, 10))
def test_where_processes_are_not_listed_the_loaded_model_counts_as_declared(
    used: int, declared: float
) -> None:
    plain = Device(index=0, memory_total_bytes=40 * GIB, memory_used_bytes=used)
    assert room(plain, declared) == 40 * GIB - max(0, used - int(declared * GIB))
    assert room(plain, None) is None  # a model of unknown size is loaded


def test_unified_memory_is_the_systems() -> None:
    shared = Device(index=0, memory_total_bytes=0, memory_used_bytes=None, processes=[])
    assert room(shared) == 7 * GIB
    assert room(shared, 3.0) == 10 * GIB
    assert room(shared, None) is None


def test_the_largest_device_counts_and_what_cannot_be_read_bounds_nothing() -> None:
    assert find_room_gb([4 * GIB, int(10.26 * GIB)]) == 10.3
    assert find_room_gb([4 * GIB, None]) is None
    assert find_room_gb([]) is None
    unread = Device(index=0, memory_total_bytes=40 * GIB, memory_used_bytes=None)
    assert room(unread) is None
    unsaid = device(40, (100, None), (200, GIB), used=9 * GIB)
    assert room(unsaid, 8.0) == 39 * GIB


def script(path: Path, others_gb: float, *own: tuple[int, float]) -> None:
    """Say what the driver of one GPU of 80 GB tells."""
    sizes = {1: others_gb, **dict(own)}
    processes = [{"pid": pid, "usedGpuMemory": int(gb * GIB)} for pid, gb in sizes.items()]
    used = int(sum(sizes.values()) * GIB)
    device: dict[str, Any] = {
        "memory": {"total": 80 * GIB, "used": used},
        "gpu": 0,
        "processes": processes,
        "samples": [],
    }
    path.with_suffix(".part").write_text(json.dumps([device]))
    path.with_suffix(".part").replace(path)


def test_an_executor_takes_calls_once_its_gpu_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ROOM-3, with a real executor, its agent's side, and a driver that answers from a file."""
    driver = tmp_path / "nvml.json"
    monkeypatch.setenv("FAKE_NVML", str(driver))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    script(driver, 50.0)

    async def run() -> None:
        words = ["--nvml", "tests.system.agent.fake_nvml", "--amd-root", "/nonexistent"]
        probe = RealProbe(ProbeWorker(words), guardian_pid=os.getpid())
        probe.pids_are_ours = True
        rig = Rig(tmp_path, probe)
        rooms = rig.rooms
        await rig.start(gpus=[0])
        rig.task.pid = rig.process.pid
        rig.give(1, ("double", {"n": 3}))
        looking = None
        try:
            reports = rig.controller.reports
            await rig.until(lambda: len(reports) > 3)
            assert {report.want for report in reports} == {0}
            looking = asyncio.create_task(rooms.run())
            await rig.until(lambda: rig.controller.ends)
            assert {report.free_gb for report in reports if report.want} == {30.0}
            script(driver, 10.0, (rig.process.pid, 20.0))
            rooms.poke()
            await rig.until(lambda: reports[-1].free_gb == 70.0)
        finally:
            if looking is not None:
                looking.cancel()
            await rig.close()
            await probe.close()

    asyncio.run(run())


async def test_room_that_another_process_takes_is_told_as_room_that_it_leaves_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on a real GPU: a call was given to an executor by the room of the request that waited for
    it, which another program had taken since."""
    driver, told = tmp_path / "nvml.json", asyncio.Event()
    monkeypatch.setenv("FAKE_NVML", str(driver))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    words = ["--nvml", "tests.system.agent.fake_nvml", "--amd-root", "/nonexistent"]
    probe = RealProbe(ProbeWorker(words), guardian_pid=os.getpid())
    probe.pids_are_ours = True
    rig = Rig(tmp_path)
    rooms = ModelRooms(rig.table, probe, lambda key: 0.0, told.set)
    script(driver, 10.0)
    await rig.start(gpus=[0])
    rig.task.pid = rig.process.pid
    looking = asyncio.create_task(rooms.run())
    try:
        for others_gb, free_gb in ((10.0, 70.0), (60.0, 20.0), (30.0, 50.0)):
            script(driver, others_gb)
            rooms.poke()
            await in_time(told.wait(), 30)
            told.clear()
            assert rooms.find(rig.task.key).free_gb == free_gb
    finally:
        looking.cancel()
        await rig.close()
        await probe.close()
