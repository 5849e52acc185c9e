"""Hold the readings of devices that a probe's worker makes, and judge their meaning for one
task. Pure."""

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from holdfast.bounds import MAX_MEMORY_BYTES, MAX_SECONDS, within
from holdfast.core.gpus import Gpu, GpuTelemetry
from holdfast.core.watchdogs import GpuReading


class DeviceProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process on a device. A value is None if the driver does not report it."""

    pid: int
    memory_bytes: int | None = None
    utilisation_percent: float | None = None


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device as it is now.

    strain: see `GpuTelemetry`.
    processes: None if the driver lists no processes at all. lost: the driver's words on why the
    device cannot be used any more. xids: the critical Xids in NVML's events since the last read.
    pci, ecc_errors (uncorrectable errors since the driver was loaded): set by a deep read only.
    """

    index: int
    vendor: Literal["nvidia", "amd"] = "nvidia"
    uuid: str = ""
    model: str = ""
    memory_total_bytes: int = 0
    memory_used_bytes: int | None = None
    utilisation_percent: float | None = None
    temperature_celsius: float | None = None
    processes: list[DeviceProcess] | None = None
    note: str = ""
    lost: str = ""
    xids: list[int] = []
    strain: str = ""
    pci: str = ""
    ecc_errors: int | None = None

    def as_gpu(self) -> Gpu:
        """Return the device as the host registers it."""
        return Gpu(
            index=self.index,
            uuid=self.uuid[:256],
            model=self.model[:256],
            memory_bytes=within(self.memory_total_bytes, 0, MAX_MEMORY_BYTES) or 0,
            vendor=self.vendor,
        )


def show_telemetry(devices: Sequence[Device], age_seconds: float) -> list[GpuTelemetry]:
    """Return the devices as they are reported to the controller."""
    return [
        GpuTelemetry(
            index=device.index,
            memory_total_bytes=within(device.memory_total_bytes, 0, MAX_MEMORY_BYTES) or 0,
            memory_used_bytes=within(device.memory_used_bytes, 0, MAX_MEMORY_BYTES),
            utilisation_percent=within(device.utilisation_percent, 0, 100),
            temperature_celsius=within(device.temperature_celsius, -100, 1000),
            strain=device.strain[:256],
            age_seconds=max(0.0, min(age_seconds, MAX_SECONDS)),
        )
        for device in {device.index: device for device in devices if not device.lost}.values()
    ]


def read_for_task(device: Device, pids: Collection[int], *, pids_are_ours: bool) -> GpuReading:
    """Return the reading of `device` for the task whose processes are `pids`.

    pids_are_ours: True if the driver's pids are those of this pid namespace. In a container they
    are the machine's, and no pid can be proven to be the task's; then the whole device's figures
    are the task's, because the device is leased to it alone, and a device that is idle as a whole
    is idle for every process.
    """
    whole_percent, whole_memory = device.utilisation_percent, device.memory_used_bytes
    mine = [process for process in device.processes or [] if process.pid in pids]
    if mine:
        percents = [process.utilisation_percent for process in mine]
        used = [process.memory_bytes for process in mine]
        percent = None if None in percents else min(100.0, sum(p or 0.0 for p in percents))
        memory = None if None in used else sum(m or 0 for m in used)
        if _is_alone(device, pids):
            # Alone on the device: the device's figures are the task's.
            percent = whole_percent if percent is None else percent
            memory = whole_memory if memory is None else memory
        return GpuReading(index=device.index, utilisation_percent=percent, memory_bytes=memory)
    if device.processes is not None and pids_are_ours:
        return GpuReading(index=device.index, utilisation_percent=0.0, memory_bytes=0)
    return GpuReading(
        index=device.index,
        utilisation_percent=whole_percent,
        memory_bytes=whole_memory,
        box_wide=pids_are_ours,
    )


def _is_alone(device: Device, pids: Collection[int]) -> bool:
    """Return True if no other process uses the device. A process with no memory there only
    opened it: AMD's driver lists every compute process on every device."""
    others = (process for process in device.processes or [] if process.pid not in pids)
    return all(process.memory_bytes == 0 for process in others)


def owns_devices(
    devices: Sequence[Device], gpus: Collection[int], pids: Collection[int], *, pids_are_ours: bool
) -> bool:
    """Return True if a task has all of the host's devices and no other process is on any
    (SIGNAL-2)."""
    if not devices or {device.index for device in devices} != set(gpus):
        return False
    if not pids_are_ours:
        return True  # the owners of the processes are unknown; by lease the devices are the task's
    return all(_is_alone(device, pids) for device in devices)


def format_devices(devices: Sequence[Device]) -> str:
    """Return the devices as a table for a person."""

    def show(value: float | None, *, shift: int = 0) -> str:
        return "?" if value is None else f"{int(value) >> shift}" if shift else f"{value:.0f}"

    lines = []
    for device in devices:
        used, percent = show(device.memory_used_bytes, shift=20), show(device.utilisation_percent)
        total = device.memory_total_bytes >> 20
        lines.append(
            f"{device.index}  {device.model or device.vendor}  {percent} %  {used} of {total} MiB "
            f" {device.note}  {device.lost}"
        )
        for process in device.processes or []:
            memory, busy = show(process.memory_bytes, shift=20), show(process.utilisation_percent)
            lines.append(f"   pid {process.pid}  {busy} %  {memory} MiB")
    return "\n".join(line.rstrip() for line in lines) or "no devices"
