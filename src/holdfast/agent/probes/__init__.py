"""Read physical signals of tasks: busy, idle or unknown. All probes have one interface, `Probe`.

real.py       trees from /proc, GPUs through a worker process (nvidia.py, amd.py behind worker.py)

PROBE-1  No driver is called in the agent's own process, so that a call that hangs is killed with
         its worker, and the reading is unknown.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from holdfast.agent.probes.devices import Device
from holdfast.agent.probes.faults import DeviceFaults, DeviceMarks
from holdfast.core.gpus import Gpu
from holdfast.core.ids import TaskKey
from holdfast.core.watchdogs import Reading

READ_SECONDS = 5.0


class Probed(msgspec.Struct, frozen=True):
    """A task to read: its key, the pid of its first process, and the indexes of its devices."""

    key: TaskKey
    pid: int
    gpus: tuple[int, ...] = ()


class Sampled(msgspec.Struct, frozen=True):
    """A reading. owns_whole_box: True if no other process uses the host's GPUs (SIGNAL-2)."""

    reading: Reading
    owns_whole_box: bool = False


class Probe(Protocol):
    """Reads tasks. Its methods never raise, and take little longer than `READ_SECONDS`. None
    means unknown."""

    kind: Literal["real", "scripted"]

    async def find_gpus(self) -> list[Gpu]:
        """Return the devices of this host; an empty list if no driver answers."""

    async def read_devices(self) -> list[Device] | None:
        """Return the devices as they are now; an empty list if no driver answers, None if a
        driver is late."""

    async def sample(self, tasks: Sequence[Probed]) -> Mapping[TaskKey, Sampled]:
        """Read the processes and devices of these tasks. A task that is missing in the answer could
        not be read at all."""

    async def mark_devices(self, gpus: Sequence[int]) -> DeviceMarks | None:
        """Return the state of these devices when a task begins; None if it is unknown."""

    async def find_faults(
        self, task: Probed, marks: DeviceMarks, started_at: float
    ) -> DeviceFaults:
        """Return the faults of the task's devices since `marks`. started_at: the task's start
        (CLOCK_BOOTTIME)."""

    async def hear_kernel(
        self, task: Probed, marks: DeviceMarks, started_at: float
    ) -> DeviceFaults:
        """Return the faults of the task's devices since `marks` that the kernel log names; call
        no driver."""

    async def describe_gpus(self) -> str:
        """Return a text on the devices and the processes on them, for forensics."""

    def forget(self, key: TaskKey) -> None:
        """Forget a task that ended."""

    async def close(self) -> None:
        """End the worker, if any."""
