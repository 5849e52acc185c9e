"""Read real tasks: their process trees from /proc, in a thread; their devices through the
worker."""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Literal

from holdfast.agent.offload import run_aside
from holdfast.agent.probes import READ_SECONDS, Probed, Sampled
from holdfast.agent.probes.devices import Device, format_devices, owns_devices, read_for_task
from holdfast.agent.probes.faults import (
    DeviceFaults,
    DeviceMarks,
    SeenEvent,
    judge_devices,
    judge_kernel,
    mark_devices,
)
from holdfast.agent.probes.sockets import SocketReader
from holdfast.agent.probes.tree import TreeMeter, find_trees
from holdfast.agent.probes.visible import choose_visible
from holdfast.agent.probes.worker import ProbeAnswer
from holdfast.agent.probes.worker_client import ProbeWorker
from holdfast.core.gpus import Gpu
from holdfast.core.ids import TaskKey
from holdfast.core.watchdogs import GpuReading, Reading, TreeReading
from holdfast.process.syscalls import read_boottime
from holdfast.process.table import ProcessEntry

log = logging.getLogger("holdfast.agent.probes")

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # the kernel's fixed inode number (PROC_PID_INIT_INO)

_MAX_EVENTS = 1024

_Trees = dict[TaskKey, tuple[float, TreeReading, list[ProcessEntry]]]


class RealProbe:
    """Reads processes and devices. pids_are_ours: True if the drivers' pids are those of this
    pid namespace."""

    kind: Literal["real", "scripted"] = "real"

    def __init__(
        self, worker: ProbeWorker | None = None, *, guardian_pid: int | None = None
    ) -> None:
        self._worker = worker or ProbeWorker()
        # The log has its own worker, because it must be read while a driver hangs the other one.
        self._kernel_worker = self._worker.make_twin()
        self._guardian_pid = os.getppid() if guardian_pid is None else guardian_pid
        self._meters: dict[TaskKey, TreeMeter] = {}
        self._reading_trees: asyncio.Future[_Trees] | None = None
        self._devices_here = True
        self._events: list[SeenEvent] = []
        self.pids_are_ours = _is_initial_namespace()

    async def find_gpus(self) -> list[Gpu]:
        """Ask the drivers for devices. If a driver hangs, the host registers without devices,
        and the error is logged."""
        if self._worker.is_default and not may_have_devices():
            self._devices_here = False
            return []
        devices = await self._worker.read()
        if devices is None:
            log.error("the GPUs of this host could not be asked; it registers without any")
        self._devices_here = bool(devices)
        if not devices:
            await self._worker.close()
        for device in devices or []:
            if device.lost:
                where = f"GPU {device.index} of this host"
                log.error(f"{where} is lost and is not offered: {device.lost}")
        found = {device.index: device for device in devices or []}
        # Lost devices keep their places, because the variables count them.
        visible = choose_visible([device.as_gpu() for device in found.values()], os.environ)
        if visible.said:
            log.warning(visible.said)
        lost = {device.index for device in found.values() if device.lost}
        return [gpu for gpu in visible.gpus if gpu.index not in lost]

    async def read_devices(self) -> list[Device] | None:
        """Ask the drivers for the devices' state, if this host has devices."""
        return await self._read_devices(wanted=self._devices_here)

    async def sample(self, tasks: Sequence[Probed]) -> Mapping[TaskKey, Sampled]:
        """Read process trees and devices at the same time."""
        trees, devices = await asyncio.gather(
            self._read_trees(tasks), self._read_devices(wanted=any(task.gpus for task in tasks))
        )
        now, ours = read_boottime(), self.pids_are_ours
        found = {}
        for task in tasks:
            at, tree, members = trees.get(task.key, (now, TreeReading(), []))
            pids = {entry.pid for entry in members}
            mine = [device for device in devices or [] if device.index in task.gpus]
            gpus: tuple[GpuReading, ...] = ()
            if members:  # without a tree, its processes on devices are unknown
                gpus = tuple(read_for_task(device, pids, pids_are_ours=ours) for device in mine)
            owns = owns_devices(devices or [], task.gpus, pids, pids_are_ours=ours)
            found[task.key] = Sampled(Reading(at=at, gpus=gpus, tree=tree), owns)
        return found

    async def _read_devices(self, *, wanted: bool = True) -> list[Device] | None:
        devices = await self._worker.read() if wanted else []
        self._take_events(devices or [])
        return devices

    def _take_events(self, devices: Sequence[Device]) -> None:
        """Keep the Xids of devices, because NVML reports each only once."""
        now = read_boottime()
        for device in devices:
            self._events += [SeenEvent(now, device.index, code) for code in device.xids]
        del self._events[:-_MAX_EVENTS]

    async def _ask_deep(self) -> ProbeAnswer | None:
        if not self._devices_here or (self._worker.is_default and not may_have_devices()):
            return None
        answer = await self._worker.ask("deep")
        self._take_events(answer.devices if answer is not None else [])
        return answer

    async def mark_devices(self, gpus: Sequence[int]) -> DeviceMarks | None:
        """Ask the drivers and the kernel log for the devices' state."""
        answer = await self._ask_deep()
        return None if answer is None else mark_devices(answer.devices, gpus, answer.kernel)

    async def find_faults(
        self, task: Probed, marks: DeviceMarks, started_at: float
    ) -> DeviceFaults:
        """Ask the drivers and the kernel log again, and return the faults since `marks`."""
        answer = await self._ask_deep()
        if answer is None:
            return DeviceFaults()
        # A driver that did not answer lists no devices, which proves no loss (FAULT-1).
        silent = {"nvidia", "amd"} if answer.errors else set(answer.unopened)
        return judge_devices(
            marks, task.gpus, answer.devices, answer.kernel, self._events, started_at, silent=silent
        )

    async def hear_kernel(
        self, task: Probed, marks: DeviceMarks, started_at: float
    ) -> DeviceFaults:
        """Read the kernel log; if it cannot be read, use the events of NVML."""
        answer = await self._kernel_worker.ask("kernel")
        if answer is None:
            return DeviceFaults()
        if answer.kernel is None:
            await self._read_devices()
        return judge_kernel(marks, task.gpus, answer.kernel, self._events, started_at)

    async def _read_trees(self, tasks: Sequence[Probed]) -> _Trees:
        """Read /proc in a thread, because a process stuck in the kernel may block its reader."""
        if self._reading_trees is not None and not self._reading_trees.done():
            return {}  # the reading before still hangs
        self._reading_trees = run_aside(lambda: self._read_trees_now(list(tasks)))
        done, _ = await asyncio.wait([self._reading_trees], timeout=READ_SECONDS)
        if not done:
            log.warning(f"/proc did not answer in {READ_SECONDS:g} s; readings are unknown")
            return {}
        return self._reading_trees.result()

    def _read_trees_now(self, tasks: list[Probed]) -> _Trees:
        roots = {task.key: task.pid for task in tasks if task.pid}
        trees = find_trees(roots, self._guardian_pid)
        readings: _Trees = {}
        sockets = SocketReader()
        for key, members in trees.items():
            meter = self._meters.setdefault(key, TreeMeter())
            readings[key] = (read_boottime(), meter.read(members, sockets), members)
        return readings

    def forget(self, key: TaskKey) -> None:
        """Forget the readings of a task that ended."""
        self._meters.pop(key, None)

    async def describe_gpus(self) -> str:
        """Return the devices as a table."""
        if not self._devices_here:
            return "no devices"
        devices = await self._read_devices()
        return "the driver does not answer" if devices is None else format_devices(devices)

    async def close(self) -> None:
        """End the workers."""
        await self._worker.close()
        await self._kernel_worker.close()


def may_have_devices() -> bool:
    """Return True if this host has traces of a driver; without any, no worker has to be started."""
    nvidia = ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia", "/dev/dxg")
    return any(os.path.exists(path) for path in (*nvidia, "/dev/kfd", "/sys/module/amdgpu"))


def _is_initial_namespace() -> bool:
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False
