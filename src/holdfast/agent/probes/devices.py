"""What a probe's worker says of the devices, and what that means for one task. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from holdfast.core.gpus import Gpu
from holdfast.core.watchdogs import GpuReading


class DeviceProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process on a device. None: the driver does not say."""

    pid: int
    memory_bytes: int | None = None
    utilisation_percent: float | None = None


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device now. processes None: the driver lists none for anybody.

    lost: in the driver's words, why it cannot be used any more. xids: critical ones that NVML told
    of since the last read. pci, ecc_errors (uncorrectable ones since the driver was loaded): only
    where they were asked for.
    """

    index: int
    vendor: Literal["nvidia", "amd"] = "nvidia"
    uuid: str = ""
    model: str = ""
    memory_total_bytes: int = 0
    memory_used_bytes: int | None = None
    utilisation_percent: float | None = None
    processes: list[DeviceProcess] | None = None
    note: str = ""
    lost: str = ""
    xids: list[int] = []
    pci: str = ""
    ecc_errors: int | None = None

    def as_gpu(self) -> Gpu:
        """As the host describes it."""
        return Gpu(
            index=self.index,
            uuid=self.uuid[:256],
            model=self.model[:256],
            memory_bytes=self.memory_total_bytes,
            vendor=self.vendor,
        )


def read_for_task(device: Device, pids: Collection[int], *, pids_are_ours: bool) -> GpuReading:
    """Return what `device` says about the task whose processes are `pids`.

    pids_are_ours: the driver's pids are those of our own pid namespace. In a container they are the
    machine's, and that none of them is the task's proves nothing; then only the box-wide figures
    are left.
    """
    if device.processes is not None:
        mine = [process for process in device.processes if process.pid in pids]
        if mine:
            percents = [process.utilisation_percent for process in mine]
            used = [process.memory_bytes for process in mine]
            percent = (
                None
                if any(p is None for p in percents)
                else min(100.0, sum(p for p in percents if p is not None))
            )
            memory = None if any(m is None for m in used) else sum(m for m in used if m is not None)
            if percent is not None and memory is not None:
                return GpuReading(
                    index=device.index, utilisation_percent=percent, memory_bytes=memory
                )
            if len(mine) < len(device.processes):
                # Part of it is only known for the whole device, which others use, too.
                return GpuReading(
                    index=device.index, utilisation_percent=percent, memory_bytes=memory
                )
            # Alone on the device: the device's figures are the task's.
            return GpuReading(
                index=device.index,
                utilisation_percent=device.utilisation_percent if percent is None else percent,
                memory_bytes=device.memory_used_bytes if memory is None else memory,
            )
        if pids_are_ours:
            return GpuReading(index=device.index, utilisation_percent=0.0, memory_bytes=0)
    return GpuReading(
        index=device.index,
        utilisation_percent=device.utilisation_percent,
        memory_bytes=device.memory_used_bytes,
        box_wide=True,
    )


def owns_devices(
    devices: Sequence[Device], gpus: Collection[int], pids: Collection[int], *, pids_are_ours: bool
) -> bool:
    """Whether a task has all of the host's devices and no stranger is seen on any (SIGNAL-2)."""
    if not devices or {device.index for device in devices} != set(gpus):
        return False
    if not pids_are_ours:
        return True  # whose processes these are is unknown; by the leases these devices are its own
    return all(process.pid in pids for device in devices for process in device.processes or [])


def format_devices(devices: Sequence[Device]) -> str:
    """Return the devices as a table for a person."""
    lines = []
    for device in devices:
        used = "?" if device.memory_used_bytes is None else f"{device.memory_used_bytes >> 20}"
        percent = "?" if device.utilisation_percent is None else f"{device.utilisation_percent:.0f}"
        total = device.memory_total_bytes >> 20
        lines.append(
            f"{device.index}  {device.model or device.vendor}  {percent} %  {used} of {total} MiB "
            f" {device.note}  {device.lost}"
        )
        for process in device.processes or []:
            memory = "?" if process.memory_bytes is None else f"{process.memory_bytes >> 20}"
            busy = (
                "?" if process.utilisation_percent is None else f"{process.utilisation_percent:.0f}"
            )
            lines.append(f"   pid {process.pid}  {busy} %  {memory} MiB")
    return "\n".join(line.rstrip() for line in lines) or "no devices"
