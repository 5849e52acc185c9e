"""Read NVIDIA devices through NVML. In the probe's worker only (PROBE-1)."""

import contextlib
from typing import Any

import msgspec

from holdfast.agent.probes.devices import Device, DeviceProcess

_LOST_ERRORS = (15, 16)  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED
_UNCORRECTED, _VOLATILE = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
_MAX_EVENTS = 64


_CLOCK_OF_SM = 1  # nvmlClockType_t
# nvmlClocksEventReasons; idle, application clocks and sync boost are no strain.
_SLOWED_BY = {
    0x04: "its power cap",
    0x08: "the hardware",
    0x20: "its temperature",
    0x40: "its temperature (hardware)",
    0x80: "the power supply",
}
_OF_THE_CHIP = 0  # NVML_TEMPERATURE_GPU


class NvidiaReader:
    """Reads all NVIDIA devices. library: `pynvml`, or a module with the same functions."""

    def __init__(self, library: Any) -> None:
        """Open the devices. Raises the library's error if there is no driver."""
        self._nvml = library
        library.nvmlInit()
        self._count = library.nvmlDeviceGetCount()
        self._handles: dict[int, Any] = {}
        self._events = self._open_events()
        self._lost: dict[int, str] = {}
        for index in range(self._count):
            self._open_device(index)
        # NVML keeps utilisation samples; each call asks for those since the newest one seen before.
        self._seen_at = [0] * self._count

    def read_version(self) -> str:
        """Return the driver's version; "" if the driver does not report it."""
        try:
            return _text(self._nvml.nvmlSystemGetDriverVersion())
        except (self._nvml.NVMLError, AttributeError):
            return ""

    def read(self, deep: bool = False) -> list[Device]:
        """Read every device; unknown values are None. deep: True to read PCI addresses and
        memory errors, too."""
        xids = self._drain_events()
        devices = []
        for index in range(self._count):
            if index not in self._handles:
                self._open_device(index)
            handle = self._handles.get(index)
            if handle is None:
                found = Device(index=index, lost=self._lost[index])
            else:
                found = self._read_device(index, handle, deep=deep)
            devices.append(msgspec.structs.replace(found, xids=xids.get(index, [])))
        return devices

    def _open_device(self, index: int) -> None:
        """Open a device. A device that was lost before has no handle, and must not hide the
        others."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) not in _LOST_ERRORS:
                raise
            self._lost[index] = str(error)
            return
        self._handles[index] = handle
        if self._events is not None:
            with contextlib.suppress(self._nvml.NVMLError, AttributeError):
                critical = self._nvml.nvmlEventTypeXidCriticalError
                self._nvml.nvmlDeviceRegisterEvents(handle, critical, self._events)

    def _open_events(self) -> Any:
        try:
            return self._nvml.nvmlEventSetCreate()
        except (self._nvml.NVMLError, AttributeError):
            return None

    def _drain_events(self) -> dict[int, list[int]]:
        """Return the critical Xids since the last call, by device, for hosts whose kernel log
        cannot be read."""
        found: dict[int, list[int]] = {}
        for _ in range(_MAX_EVENTS if self._events is not None else 0):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
                index = int(self._nvml.nvmlDeviceGetIndex(event.device))
            except (self._nvml.NVMLError, AttributeError):
                break  # most often: nothing more
            found.setdefault(index, []).append(int(event.eventData))
        return found

    def _read_device(self, index: int, handle: Any, *, deep: bool) -> Device:
        memory = self._read_memory(handle)
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        mig = self._ask("nvmlDeviceGetMigMode", handle)
        sliced = mig is not None and mig[0] == 1
        return Device(
            index=index,
            vendor="nvidia",
            uuid=_text(self._ask("nvmlDeviceGetUUID", handle)),
            model=_text(self._ask("nvmlDeviceGetName", handle)),
            memory_total_bytes=int(memory.total) if memory is not None else 0,
            memory_used_bytes=int(memory.used) if memory is not None else None,
            # A device with MIG has no utilisation: NVML refuses, or returns a zero without meaning.
            utilisation_percent=float(rates.gpu) if rates is not None and not sliced else None,
            temperature_celsius=self._read_temperature(handle),
            processes=self._read_processes(index, handle, sliced=sliced),
            note="MIG" if sliced else "",
            lost="" if memory is not None else self._find_loss(handle),
            strain=self._read_strain(handle),
            pci=self._read_pci(handle) if deep else "",
            ecc_errors=self._read_ecc(handle) if deep else None,
        )

    def _read_memory(self, handle: Any) -> Any:
        """Read the memory in use. The second version of NVML's answer leaves out the driver's
        own memory; older drivers have only the first version."""
        second = getattr(self._nvml, "nvmlMemory_v2", None)
        found = None if second is None else self._ask("nvmlDeviceGetMemoryInfo", handle, second)
        return self._ask("nvmlDeviceGetMemoryInfo", handle) if found is None else found

    def _find_loss(self, handle: Any) -> str:
        """Return why a device does not answer, if NVML's error means that it never will again;
        else ""."""
        try:
            self._nvml.nvmlDeviceGetMemoryInfo(handle)
        except self._nvml.NVMLError as error:
            return str(error) if getattr(error, "value", None) in _LOST_ERRORS else ""
        return ""

    def _read_temperature(self, handle: Any) -> float | None:
        degrees = self._ask("nvmlDeviceGetTemperature", handle, _OF_THE_CHIP)
        return None if degrees is None else float(degrees)

    def _read_strain(self, handle: Any) -> str:
        """Return in words what may make the device slow, "" for nothing."""
        words = []
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:  # a driver before 535
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        reasons = [word for bit, word in _SLOWED_BY.items() if bits is not None and bits & bit]
        if reasons:
            now = self._ask("nvmlDeviceGetClockInfo", handle, _CLOCK_OF_SM)
            most = self._ask("nvmlDeviceGetMaxClockInfo", handle, _CLOCK_OF_SM)
            clock = f" at {now} of {most} MHz" if now is not None and most is not None else ""
            words.append(f"clock held down by {' and '.join(reasons)}{clock}")
        width = self._ask("nvmlDeviceGetCurrPcieLinkWidth", handle)
        widest = self._ask("nvmlDeviceGetMaxPcieLinkWidth", handle)
        if width and widest and width < widest:
            words.append(f"PCIe link of {width} lanes, of {widest}")
        if ecc := self._read_ecc(handle):
            words.append(f"{ecc} uncorrected memory errors")
        return ", ".join(words)

    def _read_pci(self, handle: Any) -> str:
        info = self._ask("nvmlDeviceGetPciInfo", handle)
        return _text(info.busId) if info is not None else ""

    def _read_ecc(self, handle: Any) -> int | None:
        count = self._ask("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE)
        return None if count is None else int(count)

    def _read_processes(
        self, index: int, handle: Any, *, sliced: bool
    ) -> list[DeviceProcess] | None:
        compute = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        graphics = self._ask("nvmlDeviceGetGraphicsRunningProcesses", handle)
        if compute is None:
            return None
        memory: dict[int, int | None] = {}
        for process in [*compute, *(graphics or [])]:
            used = getattr(process, "usedGpuMemory", None)
            known = used if used is not None and used < 1 << 60 else None  # all ones: unknown
            before = memory.get(process.pid, 0)
            memory[process.pid] = known if before is None or known is None else max(known, before)
        percents = None if sliced else self._read_percents(index, handle)
        return [
            DeviceProcess(
                pid=pid,
                memory_bytes=used,
                # A process without a sample did nothing since the samples were last read.
                utilisation_percent=None if percents is None else percents.get(pid, 0.0),
            )
            for pid, used in memory.items()
        ]

    def _read_percents(self, index: int, handle: Any) -> dict[int, float] | None:
        """Return the highest utilisation of each process since the last call; None if unknown."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_at[index])
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) == self._nvml.NVML_ERROR_NOT_FOUND:
                return {}  # no process did anything
            return None
        percents: dict[int, float] = {}
        for sample in samples:
            self._seen_at[index] = max(self._seen_at[index], int(sample.timeStamp))
            if sample.smUtil <= 100:
                busiest = max(sample.smUtil, sample.encUtil, sample.decUtil)
                percents[sample.pid] = max(percents.get(sample.pid, 0.0), float(min(busiest, 100)))
        return percents

    def _ask(self, name: str, handle: Any, *more: int) -> Any:
        try:
            return getattr(self._nvml, name)(handle, *more)
        except (self._nvml.NVMLError, AttributeError):
            return None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
