"""Find how much memory the devices of each executor have for a model.

ROOM-1  The room is the memory that other processes leave free. Memory of the executor itself counts
        as room, because its model is dropped before another is loaded. If the driver does not show
        which memory is the executor's, it counts as much as its model declares.
ROOM-2  A reading that fails limits nothing. A device without memory of its own uses the system's.
ROOM-3  An executor with devices gets no call before its devices were read once.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.agent.probes import Probe, Probed
from holdfast.agent.probes.devices import Device
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskState
from holdfast.core.watchdogs import GpuReading

GIB = 1 << 30
LOOK_SECONDS = 5.0


class ModelRoom(msgspec.Struct, frozen=True):
    """The room for a model in the memory of an executor's devices.

    read: True if the devices were read, or there are none. free_gb: the room in GB; None if it is
    unknown.
    """

    read: bool
    free_gb: float | None = None


UNBOUND, UNREAD = ModelRoom(read=True), ModelRoom(read=False)


@dataclass(eq=False)
class ModelRooms:
    """Reads the devices of executors every `LOOK_SECONDS`.

    find_declared: finds the memory in GB that the loaded model of an executor declares; 0 without
    a model, None if the model declares none. changed: called when the room of an executor grew or
    shrank.
    """

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
        """Read the devices soon, because an executor began."""
        self._poke.set()

    async def run(self) -> None:
        """Read the devices for ever; wait while no executor has any."""
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
            news = news or before != after  # the request that waits is outdated
        if news:
            self.changed()


def _has_devices(task: AgentTask) -> bool:
    executes = task.order is not None and bool(task.order.executor)
    return executes and bool(task.gpus) and task.state is AgentTaskState.RUNNING


def find_room_gb(rooms: Sequence[int | None]) -> float | None:
    """Return the largest room in GB among an executor's devices, because a model needs one
    device; None if the room of any device is unknown."""
    known = [room for room in rooms if room is not None]
    return round(max(known) / GIB, 1) if known and len(known) == len(rooms) else None


def find_device_room(
    device: Device, own: GpuReading | None, declared_gb: float | None, available_bytes: int | None
) -> int | None:
    """Return the bytes that a device has for a model (ROOM-1, ROOM-2); None if they are unknown.

    own: the device's reading of the executor's processes. available_bytes: the system's free
    memory.
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
        # The driver's own memory belongs to no process, and is no reason for a model to wait.
        whole = used if None in listed else min(used, sum(size or 0 for size in listed))
        others = whole - own.memory_bytes
    elif declared is not None:
        others = used - declared
    else:
        return None
    return max(0, total - max(0, others))


def read_available_bytes() -> int | None:
    """Return the bytes of memory that programs can still allocate on this machine; None if
    unknown."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None
