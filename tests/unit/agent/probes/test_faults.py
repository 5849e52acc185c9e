"""What happened to a task's devices while it ran: from NVML, the kernel's log and AMD's counters to
the facts of its end."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.agent.probes import Probe, Probed
from holdfast.agent.probes.amd import AmdReader
from holdfast.agent.probes.devices import Device
from holdfast.agent.probes.faults import (
    DeviceFaults,
    DeviceMark,
    DeviceMarks,
    SeenEvent,
    add_device_faults,
    judge_devices,
    mark_devices,
)
from holdfast.agent.probes.kernel_log import KernelLog, KernelXids, SeenXid
from holdfast.agent.probes.real import RealProbe
from holdfast.agent.probes.worker_client import ProbeWorker
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.watch.faults import FaultLooks
from holdfast.core.causes import Cause, Watchdog
from holdfast.core.endings.classify import classify
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent
from holdfast.core.watchdogs.verdicts import make_trip
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import LaunchOrder
from tests.simulated.probe import ScriptedProbe
from tests.waits import within

KEY = TaskKey("job", 0, 1)
GB = 1 << 30
XID = "3,{},{},-;NVRM: Xid (PCI:0000:{}:00): {}, pid=12, name=python, GPU has fallen off the bus.\n"


def device(bus: str, **fields: Any) -> dict[str, Any]:
    plain = {
        "memory": {"total": 80 * GB, "used": GB},
        "gpu": 5,
        "processes": [],
        "samples": [],
        "ecc": 4,
    }
    return {**plain, "pci": f"00000000:{bus}:00.0", **fields}


class Box:
    """A machine with two GPUs and a kernel log, as its driver tells of it."""

    def __init__(self, folder: Path, kmsg: bool) -> None:
        self.script = folder / "nvml.json"
        self.kmsg = folder / "kmsg"
        self.devices = [device("3B"), device("5E")]
        self.write()
        self.kmsg.write_text(
            "6,100,1000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15\n"
            + XID.format(101, 2000, "3b", 48)
        )
        arguments = ["--nvml", "tests.system.agent.fake_nvml", "--amd-root", "/nonexistent"]
        self.worker = ProbeWorker(
            [*arguments, "--kmsg", str(self.kmsg if kmsg else folder / "none")], read_seconds=20.0
        )
        self.probe = RealProbe(self.worker, guardian_pid=os.getppid())

    def write(self) -> None:
        part = self.script.with_suffix(".part")
        part.write_text(json.dumps(self.devices))
        part.rename(self.script)

    def log(self, text: str) -> None:
        with self.kmsg.open("a") as file:
            file.write(text)

    async def find(self, marks: DeviceMarks | None, *gpus: int) -> DeviceFaults:
        assert marks is not None
        return await self.probe.find_faults(Probed(KEY, os.getpid(), gpus), marks, read_boottime())


@pytest.fixture(params=[True])
async def box(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Box]:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.json"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    made = Box(tmp_path, request.param)
    yield made
    await made.worker.close()


async def test_nothing_happened(box: Box) -> None:
    marks = await box.probe.mark_devices((0, 1))
    assert marks == DeviceMarks(
        devices={
            0: DeviceMark(uuid="GPU-0", pci="00000000:3B:00.0", ecc_errors=4),
            1: DeviceMark(uuid="GPU-1", pci="00000000:5E:00.0", ecc_errors=4),
        },
        sequence=101,
    )
    assert await box.find(marks, 0, 1) == DeviceFaults()


async def test_xids_of_its_own_devices_since_it_began(box: Box) -> None:
    marks = await box.probe.mark_devices((0,))
    box.log(XID.format(102, 3000, "5e", 79))  # the neighbour's
    assert await box.find(marks, 0) == DeviceFaults()
    box.log(
        XID.format(103, 4000, "3b", 31)
        + " SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
        + XID.format(104, 5000, "3b", 79)
    )
    box.log(XID.format(105, 6000, "3b", 79))
    found = await box.find(marks, 0)
    assert found == DeviceFaults(xids=(31, 79))
    facts = add_device_faults(TaskFacts(exit_code=1), found)
    assert classify(facts).rule == "gpu-xid"
    assert classify(facts).evidence["xid"] == 79


async def test_errors_of_memory_that_were_added(box: Box) -> None:
    marks = await box.probe.mark_devices((0, 1))
    box.devices[1]["ecc"] = 6
    box.write()
    found = await box.find(marks, 0, 1)
    assert found.ecc_errors == 2
    assert classify(add_device_faults(TaskFacts(signal=6), found)).rule == "gpu-ecc"
    box.devices[1]["ecc"] = 0  # it was reset
    box.write()
    assert (await box.find(marks, 0, 1)).ecc_errors == 0
    box.devices[1]["ecc"] = "unsupported"
    box.write()
    assert await box.find(marks, 0, 1) == DeviceFaults()


async def test_a_device_that_is_lost(box: Box) -> None:
    marks = await box.probe.mark_devices((0, 1))
    box.devices[1]["lost"] = True
    box.write()
    found = await box.find(marks, 0, 1)
    assert found.gpu_lost == "GPU 1: GPU is lost"
    assert classify(add_device_faults(TaskFacts(exit_code=1), found)).rule == "gpu-lost"
    assert (await box.find(marks, 0)).gpu_lost is None  # the neighbour's


async def test_a_device_that_the_driver_lists_no_more(box: Box) -> None:
    marks = await box.probe.mark_devices((0, 1))
    await box.worker.close()  # NVML sees what there is when it is opened
    del box.devices[0]
    box.devices[0]["uuid"] = "GPU-1"
    box.write()
    found = await box.find(marks, 0)
    assert (
        found.gpu_lost
        == "GPU 0 (GPU-0) was there when the task began, and the driver lists it no more"
    )
    assert (await box.find(marks, 1)).gpu_lost is None  # it has another number now, and is well


async def test_a_device_lost_before_the_driver_was_opened_does_not_hide_the_others(
    box: Box,
) -> None:
    box.devices[0]["lost"] = "from the start"
    box.write()
    assert [gpu.index for gpu in await box.probe.find_gpus()] == [1]
    marks = await box.probe.mark_devices((0, 1))
    assert marks is not None
    assert list(marks.devices) == [1]
    assert (await box.find(marks, 0)).gpu_lost == "GPU 0: GPU is lost"


@pytest.mark.parametrize("box", [False], indirect=True)
async def test_without_the_kernel_log_nvml_tells(box: Box) -> None:
    marks = await box.probe.mark_devices((0,))
    assert marks is not None
    assert marks.sequence is None
    began = read_boottime()
    box.devices[0]["events"] = [79]
    box.devices[1]["events"] = [48]
    box.write()
    await box.probe.sample(
        [Probed(KEY, os.getpid(), (0,))]
    )  # the first question is answered; the fault must not be lost
    probed = Probed(KEY, os.getpid(), (0,))
    assert await box.probe.find_faults(probed, marks, began) == DeviceFaults(xids=(79,))
    assert await box.probe.find_faults(probed, marks, read_boottime()) == DeviceFaults()


async def test_a_driver_that_does_not_answer_says_nothing(box: Box) -> None:
    """FAULT-1."""
    marks = await box.probe.mark_devices((0,))
    box.script.unlink()
    await box.worker.close()
    assert await box.find(marks, 0) == DeviceFaults()


async def test_without_a_driver_nothing_is_known() -> None:
    probe = RealProbe(
        ProbeWorker(
            ["--nvml", "none", "--amd-root", "/nonexistent", "--kmsg", "/nonexistent"],
            read_seconds=20.0,
        )
    )
    try:
        marks = await probe.mark_devices((0,))
        assert marks == DeviceMarks()
        assert await probe.find_faults(Probed(KEY, 1, (0,)), marks, 0.0) == DeviceFaults()
    finally:
        await probe.close()


AMD = "3,{},9000,-;amdgpu 0000:{}:00.0: amdgpu: {}\n"


async def test_the_kernel_is_heard_while_a_task_runs(box: Box) -> None:
    """FAULT-4: with a driver that hangs, too."""
    marks = await box.probe.mark_devices((0,))
    assert marks is not None
    box.script.unlink()
    await box.worker.close()
    probed = Probed(KEY, os.getpid(), (0,))
    try:
        assert await box.probe.hear_kernel(probed, marks, 0.0) == DeviceFaults()
        box.log(XID.format(102, 3000, "5e", 79) + XID.format(103, 4000, "3b", 31))
        assert (await box.probe.hear_kernel(probed, marks, 0.0)).xids == (31,)
        box.log(XID.format(104, 5000, "3b", 79))
        found = await box.probe.hear_kernel(probed, marks, 0.0)
        assert found.xids == (31, 79)
        assert "fallen off the bus" in found.lines[-1]
        box.log(AMD.format(105, "5e", "GPU reset begin!"))
        assert (await box.probe.hear_kernel(probed, marks, 0.0)).gpu_lost is None
        box.log(AMD.format(106, "3b", "ring gfx timeout, but soft recovered"))
        assert (await box.probe.hear_kernel(probed, marks, 0.0)).gpu_lost is None
        box.log(AMD.format(107, "3b", "GPU reset begin!"))
        lost = (await box.probe.hear_kernel(probed, marks, 0.0)).gpu_lost
        assert lost is not None
        assert "GPU reset begin!" in lost
        assert box.worker.pid is None
    finally:
        await box.probe.close()


# ---- the kernel's log


def test_reading_the_kernel_log_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("")
    log = KernelLog(str(path))
    try:
        assert log.read() == KernelXids(sequence=-1)
        ahead = read_boottime() - time.monotonic()
        with path.open("a") as file:
            file.write(
                "6,7,1500000,-;usb 1-1: new device\n" + XID.format(8, 2_500_000, "3b", 79)[:30]
            )
            file.flush()
            assert log.read().sequence == 7
            file.write(
                XID.format(8, 2_500_000, "3b", 79)[30:]
                + " DEVICE=+pci\nrubbish\n;;\n6,x,1,-;NVRM: Xid\n"
            )
            file.flush()
            found = log.read()
            assert (found.sequence, [(xid.sequence, xid.pci, xid.code) for xid in found.xids]) == (
                8,
                [(8, (0, 0x3B, 0), 79)],
            )
            assert found.xids[0].at == pytest.approx(2.5 + ahead, abs=0.5)
            # A program that may write to the log may not speak for the driver: its facility is never the
            # kernel's.
            file.write(XID.format(9, 3_000_000, "3b", 48).replace("3,9,", "11,9,"))
            file.flush()
        assert len(log.read().xids) == 1
    finally:
        log.close()


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel log takes root")
def test_the_real_kernel_log_is_read_to_its_end() -> None:
    try:
        log = KernelLog()
    except OSError:
        pytest.skip("this container may not read it")
    try:
        began = log.read()
        assert began.sequence >= -1
        assert log.read().sequence >= began.sequence
    finally:
        log.close()


# ---- judging


def seen(sequence: int, at: float, code: int, bus: int = 0x3B) -> SeenXid:
    return SeenXid(sequence=sequence, at=at, pci=(0, bus, 0), code=code)


def test_without_a_mark_the_time_must_do() -> None:
    devices = [Device(index=0, pci="00000000:3B:00.0", ecc_errors=9)]
    kernel = KernelXids(sequence=5, xids=[seen(4, 10.0, 48), seen(5, 30.0, 79)])
    found = judge_devices(DeviceMarks(), (0,), devices, kernel, [SeenEvent(30.0, 0, 13)], 20.0)
    assert found == DeviceFaults(
        xids=(79,)
    )  # its counters cannot be compared, and NVML's word is not needed
    assert judge_devices(DeviceMarks(), (0,), [], None, [], 20.0) == DeviceFaults()


def test_a_lost_device_is_still_known_by_its_mark() -> None:
    marks = DeviceMarks(devices={0: DeviceMark(uuid="u", pci="00000000:3B:00.0")}, sequence=4)
    kernel = KernelXids(sequence=5, xids=[seen(5, 0.0, 79)])
    found = judge_devices(marks, (0,), [Device(index=0, lost="GPU is lost")], kernel, [], 20.0)
    assert found == DeviceFaults(xids=(79,), gpu_lost="GPU 0: GPU is lost")


def test_only_its_own_devices_are_marked() -> None:
    devices = [
        Device(index=0, uuid="a"),
        Device(index=1, uuid="b"),
        Device(index=2, uuid="c", lost="gone"),
    ]
    assert list(mark_devices(devices, (1, 2), None).devices) == [1]


def test_amd_counters(tmp_path: Path) -> None:
    card = tmp_path / "sys/devices/pci/0000:03:00.0"
    (card / "ras").mkdir(parents=True)
    for name, text in {
        "vendor": "0x1002",
        "mem_info_vram_total": "5000",
        "mem_info_vram_used": "5",
        "gpu_busy_percent": "1",
    }.items():
        (card / name).write_text(text)
    (card / "ras/umc_err_count").write_text("ue: 2\nce: 7\n")
    (card / "ras/gfx_err_count").write_text("ue: 1\nce: 0\n")
    folder = tmp_path / "sys/class/drm/card0"
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(card)
    reader = AmdReader(str(tmp_path))
    (found,) = reader.read(deep=True)
    assert (found.ecc_errors, found.pci, found.lost) == (3, "0000:03:00.0", "")
    (found,) = reader.read()
    assert (found.ecc_errors, found.pci) == (None, "")
    (folder / "device").unlink()
    (found,) = reader.read(deep=True)
    assert "no device 0000:03:00.0" in found.lost


# ---- when an end is told


class SlowProbe(ScriptedProbe):
    """Says what it is given, once it is let."""

    def __init__(self, found: DeviceFaults | Exception) -> None:
        self.found = found
        self.asked = 0
        self.go = asyncio.Event()

    async def mark_devices(self, gpus: Sequence[int]) -> DeviceMarks | None:
        return DeviceMarks(sequence=7)

    async def find_faults(
        self, task: Probed, marks: DeviceMarks, started_at: float
    ) -> DeviceFaults:
        self.asked += 1
        await self.go.wait()
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def make_looks(tmp_path: Path, probe: Probe, gpus: list[int]) -> tuple[FaultLooks, AgentTask]:
    table = TaskTable(tmp_path)
    table.open()
    order = LaunchOrder(key=KEY, attempt=1, name="n", queue="q", project="p", argv=["x"], gpus=gpus)
    task = table.add(order, 0.0)
    task.started_at = 1.0
    return FaultLooks(probe, table), task


async def settle(done: Callable[[], bool]) -> None:
    async with within(10):
        while not done():
            await asyncio.sleep(0)


BAD = TaskFacts(exit_code=1)
HUNG = TaskFacts(signal=9, trip=make_trip(Watchdog.GPU_HEALTH, "idle", {}))


@pytest.mark.parametrize("facts", [BAD, HUNG, TaskFacts(signal=11), TaskFacts(start_error="x")])
async def test_a_bad_end_waits_for_the_devices(tmp_path: Path, facts: TaskFacts) -> None:
    probe = SlowProbe(DeviceFaults(xids=(79,), ecc_errors=1, gpu_lost="gone"))
    looks, task = make_looks(tmp_path, probe, [0])
    asking = asyncio.create_task(looks.add_faults(task, facts))
    await settle(lambda: probe.asked == 1)
    assert not asking.done()
    probe.go.set()
    found = await asking
    assert (found.xids, found.ecc_errors, found.gpu_lost) == ((79,), 1, "gone")
    assert found.exit_code == facts.exit_code


@pytest.mark.parametrize(
    ("facts", "gpus"),
    [
        (TaskFacts(exit_code=0), [0]),
        (BAD, []),
        (TaskFacts(signal=15, stopped=True), [0]),
        (TaskFacts(signal=9, trip=make_trip(Watchdog.TIME_LIMIT, "over", {})), [0]),
        (TaskFacts(lost="host_gone"), [0]),
        (TaskFacts(unkillable=True), [0]),
    ],
)
async def test_other_ends_wait_for_nothing(
    tmp_path: Path, facts: TaskFacts, gpus: list[int]
) -> None:
    """FAULT-3."""
    probe = SlowProbe(DeviceFaults(xids=(79,)))
    looks, task = make_looks(tmp_path, probe, gpus)
    found = await looks.add_faults(task, facts)
    assert msgspec.structs.replace(found, devices=None) == facts
    assert probe.asked == 0


async def test_an_end_says_which_devices_the_task_held(tmp_path: Path) -> None:
    probe = SlowProbe(DeviceFaults())
    probe.go.set()
    looks, task = make_looks(tmp_path, probe, [])
    assert (await looks.add_faults(task, BAD)).devices == ()
    looks, task = make_looks(tmp_path, probe, [0])
    assert (await looks.add_faults(task, BAD)).devices is None, "nothing tells where it is"
    mark = DeviceMark(pci="00000000:3B:00.0")
    task.saved.devices = DeviceMarks(devices={0: mark})
    assert (await looks.add_faults(task, BAD)).devices == (mark.pci,)


@pytest.mark.parametrize("error", [TimeoutError(), RuntimeError("the driver sang")])
async def test_a_probe_that_fails_does_not_keep_the_end(tmp_path: Path, error: Exception) -> None:
    """FAULT-2."""
    probe = SlowProbe(error)
    probe.go.set()
    looks, task = make_looks(tmp_path, probe, [0])
    assert await looks.add_faults(task, BAD) == BAD


class TellingProbe(SlowProbe):
    """Hears this in the kernel log while a task runs; its drivers never answer at the end."""

    async def hear_kernel(
        self, task: Probed, marks: DeviceMarks, started_at: float
    ) -> DeviceFaults:
        assert isinstance(self.found, DeviceFaults)
        return self.found

    async def find_faults(
        self, task: Probed, marks: DeviceMarks, started_at: float
    ) -> DeviceFaults:
        raise TimeoutError


@pytest.mark.parametrize(
    ("found", "trips"),
    [
        (DeviceFaults(xids=(79,), lines=("NVRM: Xid (PCI:0000:3b:00): 79, gone",)), True),
        (DeviceFaults(xids=(31, 94)), True),
        (DeviceFaults(gpu_lost="the kernel log says: amdgpu: GPU reset begin!"), True),
        *((DeviceFaults(xids=(code,)), False) for code in (13, 31, 43, 45, 63, 9999)),
        (DeviceFaults(), False),
    ],
)
async def test_only_a_fault_of_the_hardware_trips_at_once(
    tmp_path: Path, found: DeviceFaults, trips: bool
) -> None:
    """FAULT-4."""
    looks, task = make_looks(tmp_path, TellingProbe(found), [0])
    task.saved.devices = DeviceMarks(sequence=7)
    now = read_boottime()
    task.move(AgentTaskEvent.LAUNCH)
    task.move(AgentTaskEvent.RUN)
    task.watch.started(now)
    await looks.poll()
    task.watch.tick(now)
    assert (task.watch.trip is not None) is trips
    if task.watch.trip is not None:
        assert task.watch.trip.evidence["kernel_log"] == ("\n".join(found.lines) or None)
        ended = await looks.add_faults(task, TaskFacts(signal=9, trip=task.watch.trip))
        assert classify(ended).cause is Cause.GPU_FAULT


async def test_how_the_devices_were_survives_the_agent(tmp_path: Path) -> None:
    looks, task = make_looks(tmp_path, SlowProbe(DeviceFaults()), [0])
    looks.begin(task)
    await settle(lambda: task.saved.devices is not None)
    again = TaskTable(tmp_path).restore(KEY, 0.0)
    assert again.saved.devices == DeviceMarks(sequence=7)


async def test_a_script_may_say_that_devices_failed(tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text(
        '{"job": "job", "faults": {"xids": [79], "gpu_lost": "gone"}}\n{"job": "other"}\n'
    )
    probe = ScriptedProbe(str(path))
    found = await probe.find_faults(Probed(KEY, 1, (0,)), DeviceMarks(), 0.0)
    assert found == DeviceFaults(xids=(79,), gpu_lost="gone")
