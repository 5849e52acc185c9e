"""How much memory the devices of each executor have for a model.

ROOM-1  What other processes leave is room. What the executor holds itself is not taken off, because
        its model is dropped before another is loaded. Where the driver does not say which memory is
        the executor's, it is taken for as much as its model declares.
ROOM-2  What cannot be read bounds nothing. A device without memory of its own has the system's.
ROOM-3  An executor with devices is handed no call before they were read, once.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.agent.probes import Probe, Probed
from holdfast.agent.probes.devices import Device
from holdfast.agent.tasks import AgentTask, TaskTable
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskState
from holdfast.core.watchdogs import GpuReading

GIB = 1 << 30
LOOK_SECONDS = 5.0


class ModelRoom(msgspec.Struct, frozen=True):
    """The room for a model in the memory of an executor's devices. free_gb: None where it is not
    known. read: the devices were asked, or there are none."""

    read: bool
    free_gb: float | None = None


UNBOUND, UNREAD = ModelRoom(read=True), ModelRoom(read=False)


@dataclass(eq=False)
class ModelRooms:
    """Reads the devices of executors now and then. find_declared: the memory that the loaded model
    of an executor declares, in GB; 0 without one, None where it declares none. changed: called when
    there is more room for an executor, or less."""

    table: TaskTable
    probe: Probe
    find_declared: Callable[[TaskKey], float | None]
    changed: Callable[[], None]
    _rooms: dict[TaskKey, ModelRoom] = field(default_factory=dict)
    _poke: asyncio.Event = field(default_factory=asyncio.Event)

    def find(self, key: TaskKey) -> ModelRoom:
        """Return an executor's room, as it was read last."""
        task = self.table.get(key)
        if task is None or not task.gpus:
            return UNBOUND
        return self._rooms.get(key, UNREAD)

    def poke(self) -> None:
        """Look soon: an executor began."""
        self._poke.set()

    async def run(self) -> None:
        """Look for ever; where there is no executor with devices, when one begins."""
        while True:
            self._poke.clear()
            tasks = [task for task in self.table if _has_devices(task)]
            if tasks:
                await self._look(tasks)
            self._rooms = {key: room for key, room in self._rooms.items() if self.table.get(key)}
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._poke.wait(), LOOK_SECONDS if tasks else None)

    async def _look(self, tasks: Sequence[AgentTask]) -> None:
        devices = {device.index: device for device in await self.probe.read_devices() or ()}
        wanted = [Probed(task.key, task.pid, task.gpus) for task in tasks if devices]
        samples = await self.probe.sample(wanted) if wanted else {}
        available = read_available_bytes()
        news = False
        for task in tasks:
            sample = samples.get(task.key)
            own = {} if sample is None else {gpu.index: gpu for gpu in sample.reading.gpus}
            declared = self.find_declared(task.key)
            rooms = [
                find_device_room(devices[gpu], own.get(gpu), declared, available)
                if gpu in devices
                else None
                for gpu in task.gpus
            ]
            before = self._rooms.get(task.key, UNREAD)
            after = self._rooms[task.key] = ModelRoom(read=True, free_gb=find_room_gb(rooms))
            news = news or before != after  # less room, too: a request that waits tells the old
        if news:
            self.changed()


def _has_devices(task: AgentTask) -> bool:
    executes = task.order is not None and bool(task.order.executor)
    return executes and bool(task.gpus) and task.state is AgentTaskState.RUNNING


def find_room_gb(rooms: Sequence[int | None]) -> float | None:
    """Return the largest room of an executor's devices, because a model needs one; None where any is
    not known."""
    known = [room for room in rooms if room is not None]
    return round(max(known) / GIB, 1) if known and len(known) == len(rooms) else None


def find_device_room(
    device: Device, own: GpuReading | None, declared_gb: float | None, available_bytes: int | None
) -> int | None:
    """Return the bytes that a device has for a model (ROOM-1, ROOM-2).

    own: what it says of the executor's processes. available_bytes: of the system.
    """
    declared = None if declared_gb is None else int(declared_gb * GIB)
    total, used = device.memory_total_bytes, device.memory_used_bytes
    if not total:
        if declared is None or available_bytes is None:
            return None
        return available_bytes + declared
    if used is None:
        return None
    if own is not None and own.memory_bytes is not None and not own.box_wide:
        listed = [process.memory_bytes for process in device.processes or ()]
        # What the driver keeps for itself is of no process, and no reason for a model to wait.
        whole = used if None in listed else min(used, sum(size or 0 for size in listed))
        others = whole - own.memory_bytes
    elif declared is not None:
        others = used - declared
    else:
        return None
    return max(0, total - max(0, others))


def read_available_bytes() -> int | None:
    """Return the memory that programs can still have on this machine; None where it is not known."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None
