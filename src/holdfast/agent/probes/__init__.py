"""Probes: physical signals of tasks, three-valued. One silhouette, `Probe`, for every kind.

real.py       trees from /proc, GPUs through a worker process (nvidia.py, amd.py behind worker.py)
scripted.py   readings from a file, for tests, and loud about it

PROBE-1  No driver is ever called in the agent's own process: a call that hangs is killed with its
         worker, and the reading is unknown.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from holdfast.agent.probes.devices import Device
from holdfast.agent.probes.faults import DeviceFaults, DeviceMarks
from holdfast.core.gpus import Gpu
from holdfast.core.ids import TaskKey
from holdfast.core.watchdogs import Reading

READ_SECONDS = 5.0


class Probed(msgspec.Struct, frozen=True):
    """A task to be read: its first process and its devices."""

    key: TaskKey
    pid: int
    gpus: tuple[int, ...] = ()


class Sampled(msgspec.Struct, frozen=True):
    """A reading. owns_whole_box: no other process uses the host's GPUs (SIGNAL-2)."""

    reading: Reading
    owns_whole_box: bool = False


class Probe(Protocol):
    """Reads tasks. Never raises, and takes little longer than `READ_SECONDS`. None: unknown."""

    kind: str  # "real" or "scripted"

    async def find_gpus(self) -> list[Gpu]:
        """The devices of this host; none where no driver answers."""

    async def read_devices(self) -> list[Device] | None:
        """The devices as they are now; none where no driver answers, None where one is late."""

    async def sample(self, tasks: Sequence[Probed]) -> Mapping[TaskKey, Sampled]:
        """Read these tasks. One that is missing in the answer could not be read at all."""

    async def mark_devices(self, gpus: Sequence[int]) -> DeviceMarks | None:
        """How these devices are when a task begins, None where nothing can be said."""

    async def find_faults(
        self, task: Probed, marks: DeviceMarks, started_at: float
    ) -> DeviceFaults:
        """What happened to the task's devices since `marks`. started_at: CLOCK_BOOTTIME."""

    async def hear_kernel(
        self, task: Probed, marks: DeviceMarks, started_at: float
    ) -> DeviceFaults:
        """What the kernel log tells of the task's devices since `marks`; asks no driver."""

    async def describe_gpus(self) -> str:
        """The devices and the processes on them, for forensics."""

    def forget(self, key: TaskKey) -> None:
        """Drop the memory of a task that ended."""

    async def close(self) -> None:
        """End the worker, if any."""
