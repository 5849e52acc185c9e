"""Probes: what drivers say, what that means for one task, and drivers that say nothing at all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.config import AgentConfig
from holdfast.agent.host_facts import read_host_facts
from holdfast.agent.probes import Probed
from holdfast.agent.probes.amd import AmdReader, parse_amd_smi
from holdfast.agent.probes.devices import Device, DeviceProcess, owns_devices, read_for_task
from holdfast.agent.probes.real import RealProbe
from holdfast.agent.probes.sockets import SocketReader
from holdfast.agent.probes.tree import TreeMeter, find_trees
from holdfast.agent.probes.worker_client import ProbeWorker
from holdfast.agent.watch.telemetry import Telemetry
from holdfast.core.ids import TaskKey
from holdfast.core.watchdogs import TreeReading
from holdfast.process.keeper import Keepers
from holdfast.process.spawn import SpawnRequest, read_start, spawn
from holdfast.process.starter import find_starter
from holdfast.process.syscalls import read_boottime
from holdfast.process.table import read_entry
from tests.waits import stretch, wait_exit, wait_until, within

GB = 1 << 30
KEY = TaskKey("job", 0, 1)
Script = Callable[[list[dict[str, Any]]], None]


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    path = tmp_path / "nvml.json"
    monkeypatch.setenv("FAKE_NVML", str(path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    return lambda devices: (
        (path.with_suffix(".part").write_text(json.dumps(devices)) and None)
        or os.rename(path.with_suffix(".part"), path)
    )


def device(**fields: Any) -> dict[str, Any]:
    return {
        "memory": {"total": 80 * GB, "used": 10 * GB},
        "gpu": 50,
        "processes": [],
        "samples": [],
        **fields,
    }


def worker(**fields: Any) -> ProbeWorker:
    return ProbeWorker(
        ["--nvml", "tests.system.agent.fake_nvml", "--amd-root", "/nonexistent"], **fields
    )


async def test_nvidia_per_process_readings(nvml: Script) -> None:
    pid = os.getpid()
    process = {"pid": pid, "usedGpuMemory": 3 * GB}
    nvml(
        [
            device(processes=[process], samples=[{"pid": pid, "timeStamp": 5, "smUtil": 70}]),
            device(),
        ]
    )
    asked = worker()
    try:
        probe = RealProbe(asked, guardian_pid=os.getppid())
        probe.pids_are_ours = True
        gpus = await probe.find_gpus()
        assert [(g.index, g.model, g.memory_bytes) for g in gpus] == [
            (0, "Fake 9000", 80 * GB),
            (1, "Fake 9000", 80 * GB),
        ]
        nvml(
            [
                device(processes=[process], samples=[{"pid": pid, "timeStamp": 9, "smUtil": 30}]),
                device(),
            ]
        )
        sampled = (await probe.sample([Probed(KEY, pid, (0,))]))[KEY]
        found = sampled.reading.gpus[0]
        assert (found.utilisation_percent, found.memory_bytes, found.box_wide) == (
            30.0,
            3 * GB,
            False,
        )
        assert not sampled.owns_whole_box
        direct = await asked.read()
        assert direct is not None
        assert direct[0].processes == [
            DeviceProcess(pid=pid, memory_bytes=3 * GB, utilisation_percent=0.0)
        ]
    finally:
        await asked.close()


async def test_a_host_offers_what_its_environment_leaves_to_it(
    nvml: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VISIBLE-1: jobs had been given other people's cards. A lost one is counted all the same."""
    nvml([device(lost=True), device(), device(), device()])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    asked = worker()
    try:
        assert [gpu.index for gpu in await RealProbe(asked).find_gpus()] == [2]
        config = AgentConfig(url="http://127.0.0.1:9", state_dir="/nowhere", gpus=2)
        facts = await read_host_facts(config, RealProbe(asked))
        assert [(gpu.index, gpu.vendor) for gpu in facts.gpus] == [(0, "declared"), (2, "declared")]
    finally:
        await asked.close()


async def test_telemetry_shows_every_device_with_the_age_of_its_reading(nvml: Script) -> None:
    nvml([device(temperature=71), device(lost=True)])
    asked = worker()
    try:
        probe = RealProbe(asked)
        await probe.find_gpus()
        telemetry = Telemetry(probe)
        assert telemetry.show() == []
        reading = asyncio.create_task(telemetry.run())
        while not telemetry.show():
            await asyncio.sleep(0.01)
        (shown,) = telemetry.show()
        reading.cancel()
    finally:
        await asked.close()
    assert (shown.index, shown.temperature_celsius, shown.utilisation_percent) == (0, 71.0, 50.0)
    assert (shown.memory_used_bytes, shown.memory_total_bytes) == (10 * GB, 80 * GB)
    assert 0 <= shown.age_seconds < stretch(15)


async def test_nvidia_says_little(nvml: Script) -> None:
    unavailable = {"pid": 5, "usedGpuMemory": (1 << 64) - 1}
    nvml(
        [
            device(processes=[unavailable], samples="unsupported"),
            device(gpu="unsupported", processes="unsupported"),
            device(mig=[1, 1], gpu=0),
        ]
    )
    asked = worker()
    try:
        found = await asked.read()
        assert found is not None
        assert found[0].processes == [DeviceProcess(pid=5)]
        assert (found[1].utilisation_percent, found[1].processes) == (None, None)
        assert (found[2].utilisation_percent, found[2].note) == (None, "MIG")
    finally:
        await asked.close()


async def test_what_the_driver_keeps_for_itself_is_not_in_use(nvml: Script) -> None:
    """An idle H100 keeps 480 MiB, which `nvidia-smi` does not call used either."""
    kept = {"total": 80 * GB, "used": 0, "reserved": 480 << 20}
    nvml([device(memory=kept), device()])
    asked = worker()
    try:
        found = await asked.read()
        assert found is not None
        assert [d.memory_used_bytes for d in found] == [0, 10 * GB], "an older driver says one sum"
    finally:
        await asked.close()


async def test_a_worker_that_hangs_is_killed_and_unknown(nvml: Script) -> None:
    nvml([device()])
    asked = worker(read_seconds=0.5)
    asked._read_seconds = 20.0  # the first answer may take a while: an interpreter starts
    try:
        assert await asked.read()
        asked._read_seconds = 0.3
        pid = asked.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        assert await asked.read() is None
        assert read_entry(pid) is None
        assert asked.hung
        assert await asked.read() is None  # the driver is left in peace for a while
        asked._not_before = 0.0
        asked._read_seconds = 20.0
        assert await asked.read()
        assert not asked.hung
    finally:
        await asked.close()


async def test_a_worker_that_dies_is_unknown() -> None:
    asked = ProbeWorker(["--no-such-option"])
    assert await asked.read() is None
    await asked.close()


def test_what_a_device_says_about_a_task() -> None:
    mine = DeviceProcess(pid=1, memory_bytes=5, utilisation_percent=40.0)
    other = DeviceProcess(pid=2, memory_bytes=7, utilisation_percent=50.0)
    whole = Device(index=0, memory_used_bytes=99, utilisation_percent=88.0, processes=[mine, other])
    found = read_for_task(whole, {1}, pids_are_ours=True)
    assert (found.utilisation_percent, found.memory_bytes, found.box_wide) == (40.0, 5, False)
    found = read_for_task(whole, {3}, pids_are_ours=True)
    assert (found.utilisation_percent, found.memory_bytes, found.box_wide) == (0.0, 0, False)
    found = read_for_task(
        whole, {3}, pids_are_ours=False
    )  # a container: the device is leased to the task alone, so its figures are the task's
    assert (found.utilisation_percent, found.memory_bytes, found.box_wide) == (88.0, 99, False)
    silent = Device(index=0, processes=[DeviceProcess(pid=1), other])
    found = read_for_task(silent, {1}, pids_are_ours=True)
    assert (found.utilisation_percent, found.memory_bytes, found.box_wide) == (None, None, False)
    alone = Device(
        index=0, memory_used_bytes=99, utilisation_percent=88.0, processes=[DeviceProcess(pid=1)]
    )
    found = read_for_task(alone, {1}, pids_are_ours=True)
    assert (found.utilisation_percent, found.memory_bytes, found.box_wide) == (88.0, 99, False)


def test_a_process_without_memory_on_the_device_is_there() -> None:
    """On a device that shares the CPU's memory, AMD's driver counts none of it for a process."""
    mine = DeviceProcess(pid=1, memory_bytes=0)
    idle_other = DeviceProcess(pid=2, memory_bytes=0)
    other = DeviceProcess(pid=3, memory_bytes=7)
    busy = Device(index=0, utilisation_percent=88.0, processes=[mine, idle_other])
    assert read_for_task(busy, {1}, pids_are_ours=True).utilisation_percent == 88.0
    shared = Device(index=0, utilisation_percent=88.0, processes=[mine, other])
    assert read_for_task(shared, {1}, pids_are_ours=True).utilisation_percent is None
    assert owns_devices([busy], (0,), {1}, pids_are_ours=True)
    assert not owns_devices([shared], (0,), {1}, pids_are_ours=True)


def test_who_owns_the_box() -> None:
    devices = [Device(index=0, processes=[DeviceProcess(pid=1)]), Device(index=1)]
    assert owns_devices(devices, (0, 1), {1}, pids_are_ours=True)
    assert not owns_devices(devices, (0,), {1}, pids_are_ours=True)
    assert not owns_devices(devices, (0, 1), {2}, pids_are_ours=True)
    assert owns_devices(devices, (0, 1), {2}, pids_are_ours=False)


def test_amd_from_sysfs(tmp_path: Path) -> None:
    card = tmp_path / "sys/devices/pci/0000:03:00.0"
    card.mkdir(parents=True)
    files = {
        "vendor": "0x1002",
        "gpu_busy_percent": "37",
        "mem_info_vram_used": "1000",
        "mem_info_vram_total": "5000",
    }
    for name, text in files.items():
        (card / name).write_text(text + "\n")
    drm = tmp_path / "sys/class/drm"
    (drm / "card0").mkdir(parents=True)
    (drm / "card0-HDMI-A-1").mkdir()
    (drm / "card0/device").symlink_to(card)
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    (node / "gpu_id").write_text("4711")
    (node / "properties").write_text("location_id 768\ndomain 0\n")
    process = tmp_path / "sys/class/kfd/kfd/proc/77"
    process.mkdir(parents=True)
    (process / "vram_4711").write_text("900")
    (card / "hwmon/hwmon3").mkdir(parents=True)
    (card / "hwmon/hwmon3/temp1_input").write_text("61500\n")
    found = AmdReader(str(tmp_path)).read()
    assert found[0].temperature_celsius == 61.5
    assert [(d.index, d.vendor, d.utilisation_percent, d.memory_used_bytes) for d in found] == [
        (0, "amd", 37.0, 1000)
    ]
    assert found[0].processes == [DeviceProcess(pid=77, memory_bytes=900)]
    (process / "vram_4711").write_text("0")  # it uses memory shared with the CPU
    assert AmdReader(str(tmp_path)).read()[0].processes == [DeviceProcess(pid=77, memory_bytes=0)]
    with pytest.raises(FileNotFoundError):
        AmdReader(str(tmp_path / "empty"))


def test_amd_smi_in_any_shape() -> None:
    usage = {
        "gpu": 0,
        "usage": {"gfx_activity": {"value": 12, "unit": "%"}},
        "mem_usage": {"used_vram": {"value": 3}},
    }
    assert parse_amd_smi([usage]) == {0: (12.0, 3 << 20)}
    assert parse_amd_smi({"gpu_data": [usage]}) == {0: (12.0, 3 << 20)}
    assert parse_amd_smi([{"gpu": 1, "usage": "N/A"}, 5, {"x": 1}]) == {1: (None, None)}
    assert parse_amd_smi("junk") == {}


def test_counters_of_a_tree_never_fall() -> None:
    code = "import os, sys\nfor line in sys.stdin:\n    x = sum(i * i for i in range(3_000_000)); print(x, flush=True)"
    parent = f"import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', {code!r}])\np.wait()\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", parent],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        meter = TreeMeter()

        def read() -> Any:
            return meter.read(find_trees({KEY: process.pid}, os.getpid())[KEY], SocketReader())

        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.readline()
        first = read()
        assert first.cpu_seconds > 0.02
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.readline()
        second = read()
        assert second.cpu_seconds > first.cpu_seconds
        process.stdin.close()  # the child goes, its share must not
        wait_exit(process, 10)
        third = read()
        assert third.cpu_seconds is None  # no process is left to be read
        process.stdout.close()


@pytest.mark.parametrize("in_container", [False, True])
def test_a_tree_has_its_marked_orphans_and_of_a_container_only_what_is_inside(
    in_container: bool,
) -> None:
    """The runner of a container is the guardian's own child and bears the mark, as orphans do."""
    environ = {**os.environ, "HOLDFAST_TASK": str(KEY), "HOLDFAST_HOST": "h"}
    inside = "setsid sleep 600 & echo $!; wait"
    with subprocess.Popen(
        ["/bin/sh", "-c", inside], stdout=subprocess.PIPE, start_new_session=True, env=environ
    ) as marked:
        assert marked.stdout is not None
        child = int(marked.stdout.readline())
        with subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) as task:
            root = child if in_container else task.pid
            try:
                tree = find_trees({KEY: root}, os.getpid())[KEY]
                expected = {child} if in_container else {task.pid, marked.pid, child}
                assert {entry.pid for entry in tree} == expected
            finally:
                task.kill()
                os.kill(child, 9)
                marked.kill()


@pytest.mark.skipif(
    find_starter() is None, reason="the package was built without the native starter"
)
def test_a_tree_below_a_keeper_has_its_runaways() -> None:
    """They are the keeper's children then, and none of the guardian's (KEEPER-3)."""
    script = "(setsid sleep 600 & echo $! >&2); sleep 600 & echo $! >&2; wait"
    read_fd, write_fd = os.pipe()
    slot = Keepers().take_slot(read_boottime() + 600)
    request = SpawnRequest(
        argv=("/bin/sh", "-c", script),
        env=os.environ,
        stderr=os.devnull,
        stderr_pipe=write_fd,
        keeper=slot,
    )
    child = spawn(request)
    os.close(write_fd)
    try:
        with open(read_fd) as lines:
            runaway, below = int(lines.readline()), int(lines.readline())
        tree = find_trees({KEY: child.program_pid}, os.getpid())[KEY]
        assert {entry.pid for entry in tree} == {child.program_pid, runaway, below}
    finally:
        for pid in (runaway, below, child.pid):
            os.kill(pid, 9)
        os.waitpid(child.pid, 0)
        read_start(child, request)


@contextmanager
def start_kept(mark: str) -> Iterator[int]:
    """A program below a keeper of its own, as the guardian starts tasks and sessions."""
    request = SpawnRequest(
        argv=("/bin/sleep", "600"),
        env={"HOLDFAST_TASK": mark},
        keeper=Keepers().take_slot(read_boottime() + 600),
    )
    child = spawn(request)
    try:
        yield child.program_pid
    finally:
        for pid in (child.program_pid, child.pid):
            os.kill(pid, 9)
        os.waitpid(child.pid, 0)
        read_start(child, request)


@pytest.mark.skipif(
    find_starter() is None, reason="the package was built without the native starter"
)
async def test_what_a_session_does_on_a_gpu_is_no_work_of_its_task(nvml: Script) -> None:
    """INSIDE-1: its process has a keeper of its own, so the driver's figures of its pid are left
    out."""
    asked = worker()
    with start_kept(str(KEY)) as task, start_kept("session 1") as session:
        held = [{"pid": task, "usedGpuMemory": 3 * GB}, {"pid": session, "usedGpuMemory": 5 * GB}]
        try:
            probe = RealProbe(asked, guardian_pid=os.getpid())
            probe.pids_are_ours = True
            for at, percent in ((5, 0), (9, 30)):
                busy = {session: 95, task: percent}
                samples = [{"pid": pid, "timeStamp": at, "smUtil": n} for pid, n in busy.items()]
                nvml([device(gpu=95, processes=held, samples=samples)])
                sampled = (await probe.sample([Probed(KEY, task, (0,))]))[KEY]
                (found,) = sampled.reading.gpus
                assert (found.utilisation_percent, found.memory_bytes) == (percent, 3 * GB)
                assert not found.box_wide
        finally:
            await asked.close()


def test_stopped_processes_are_counted() -> None:
    with subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) as process:
        try:
            meter = TreeMeter()

            def read() -> TreeReading:
                return meter.read(find_trees({KEY: process.pid}, 1)[KEY], SocketReader())

            os.kill(process.pid, signal.SIGSTOP)
            wait_until(lambda: read().stopped == 1)
            os.kill(process.pid, signal.SIGCONT)
            wait_until(lambda: read().stopped == 0)
        finally:
            process.kill()


async def test_sampling_without_devices_reads_the_tree() -> None:
    process = await asyncio.create_subprocess_exec("/bin/sleep", "30", start_new_session=True)
    probe = RealProbe(guardian_pid=os.getpid())
    try:
        async with within(10):
            while True:  # a process has no memory in the moment of its exec
                sampled = (await probe.sample([Probed(KEY, process.pid)]))[KEY]
                if sampled.reading.tree.rss_bytes:
                    break
        assert sampled.reading.tree.cpu_seconds is not None
        assert sampled.reading.gpus == ()
    finally:
        process.kill()
        await process.wait()
        await probe.close()
