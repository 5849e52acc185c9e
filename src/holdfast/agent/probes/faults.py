"""Find faults of a task's devices while it ran: Xids, uncorrectable memory errors, lost devices.
Pure.

FAULT-1  A device that cannot be read does not count as broken. Only a driver's own message, or a
         device that it listed before and lists no more, is reported.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast.agent.probes.devices import Device
from holdfast.agent.probes.kernel_log import AMD_FAULT, KernelXids, SeenXid
from holdfast.core.endings.xids import parse_pci
from holdfast.core.facts import TaskFacts

MAX_CODES = 64
MAX_LINES = 8


class DeviceMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one device when a task began. ecc_errors: its uncorrectable errors until
    then; None if the device does not count them."""

    vendor: str = "nvidia"
    uuid: str = ""
    pci: str = ""
    ecc_errors: int | None = None


class DeviceMarks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a task's devices when it began. devices: device index → its mark. sequence: the
    number of the kernel log's last record then; None if the log cannot be read."""

    devices: Mapping[int, DeviceMark] = {}
    sequence: int | None = None


class SeenEvent(msgspec.Struct, frozen=True):
    """A critical Xid in an event of NVML. at: the instant at which it was read (CLOCK_BOOTTIME),
    up to one sample after it happened. index: the device. code: the Xid."""

    at: float
    index: int
    code: int


class DeviceFaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The faults of a task's devices, as `TaskFacts` has them. lines: lines of the kernel log
    while the task runs."""

    xids: tuple[int, ...] = ()
    ecc_errors: int = 0
    gpu_lost: str | None = None
    lines: tuple[str, ...] = ()


def mark_devices(
    devices: Sequence[Device], gpus: Sequence[int], kernel: KernelXids | None
) -> DeviceMarks:
    """Return the state of a task's devices to remember when it begins."""
    marks = {
        device.index: DeviceMark(
            vendor=device.vendor, uuid=device.uuid, pci=device.pci, ecc_errors=device.ecc_errors
        )
        for device in devices
        if device.index in gpus and not device.lost
    }
    return DeviceMarks(devices=marks, sequence=None if kernel is None else kernel.sequence)


def judge_devices(
    marks: DeviceMarks,
    gpus: Sequence[int],
    devices: Sequence[Device],
    kernel: KernelXids | None,
    events: Sequence[SeenEvent],
    started_at: float,
    *,
    silent: Collection[str] = (),
) -> DeviceFaults:
    """Return the faults of the devices `gpus` since `marks`.

    started_at: the task's start (CLOCK_BOOTTIME), used if `marks` has no sequence number. silent:
    the vendors whose drivers did not answer.
    """
    now = {
        index: found
        for index in gpus
        if (found := _find_device(index, marks.devices.get(index), devices)) is not None
    }
    lost = []
    ecc_errors = 0
    for index in gpus:
        mark, device = marks.devices.get(index), now.get(index)
        if device is not None and device.lost:
            lost.append(f"GPU {index}: {device.lost}")
        if mark is None:
            continue  # never read: the operator may have declared it
        if device is None and mark.vendor not in silent:
            name = mark.uuid or mark.pci or "no name"
            lost.append(
                f"GPU {index} ({name}) was there when the task began, and the driver lists it no "
                "more"
            )
        if device is not None and None not in (mark.ecc_errors, device.ecc_errors):
            # A device that was reset counts from 0 again.
            ecc_errors += max(0, (device.ecc_errors or 0) - (mark.ecc_errors or 0))
    told = judge_kernel(marks, gpus, kernel, events, started_at, list(now.values()))
    if told.gpu_lost is not None:
        lost.append(told.gpu_lost)
    return DeviceFaults(
        xids=told.xids, ecc_errors=ecc_errors, gpu_lost="; ".join(lost)[:4096] or None
    )


def judge_kernel(
    marks: DeviceMarks,
    gpus: Sequence[int],
    kernel: KernelXids | None,
    events: Sequence[SeenEvent],
    started_at: float,
    devices: Sequence[Device] = (),
) -> DeviceFaults:
    """Return the faults of the devices `gpus` that the kernel log names, or NVML's events if the
    log cannot be read."""
    if kernel is None:
        heard = [event.code for event in events if event.index in gpus and event.at >= started_at]
        return DeviceFaults(xids=tuple(dict.fromkeys(heard))[:MAX_CODES])
    seen = _find_records(marks, devices, kernel, started_at)
    codes = dict.fromkeys(record.code for record in seen if record.code != AMD_FAULT)
    amd = next((record.line for record in seen if record.code == AMD_FAULT), None)
    return DeviceFaults(
        xids=tuple(codes)[:MAX_CODES],
        gpu_lost=None if amd is None else f"the kernel log says: {amd}",
        lines=tuple(record.line for record in seen)[:MAX_LINES],
    )


def _find_device(index: int, mark: DeviceMark | None, devices: Sequence[Device]) -> Device | None:
    """Return a device by its UUID, because a driver that was opened anew numbers the devices
    that are left from 0."""
    found = next((device for device in devices if device.index == index), None)
    if mark is None or not mark.uuid or (found is not None and found.lost):
        return found
    return next((device for device in devices if device.uuid == mark.uuid), None)


def _find_records(
    marks: DeviceMarks, devices: Sequence[Device], kernel: KernelXids, started_at: float
) -> list[SeenXid]:
    names = [mark.pci for mark in marks.devices.values()] + [device.pci for device in devices]
    places = {parse_pci(name) for name in names}
    since = marks.sequence
    return [
        xid
        for xid in kernel.xids
        if xid.pci in places and (xid.at >= started_at if since is None else xid.sequence > since)
    ]


def add_device_faults(facts: TaskFacts, found: DeviceFaults) -> TaskFacts:
    """Return the facts of an end with the faults of its devices."""
    return msgspec.structs.replace(
        facts, xids=found.xids, ecc_errors=found.ecc_errors, gpu_lost=found.gpu_lost
    )
