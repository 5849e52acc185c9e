"""NVIDIA devices through NVML. Runs in the probe's worker process only (PROBE-1)."""

from __future__ import annotations

from typing import Any

from holdfast.agent.probes.devices import Device, DeviceProcess


class NvidiaReader:
    """Reads all NVIDIA devices. `library` is `pynvml` or something that looks like it."""

    def __init__(self, library: Any) -> None:
        """Raises whatever the library raises where there is no driver."""
        self._nvml = library
        library.nvmlInit()
        self._handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]
        # NVML keeps utilisation samples; each call asks for those since the newest one seen before.
        self._seen_at = [0] * len(self._handles)

    def read(self) -> list[Device]:
        """Read every device; what NVML does not say is None."""
        return [self._read_device(index, handle) for index, handle in enumerate(self._handles)]

    def _read_device(self, index: int, handle: Any) -> Device:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
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
            # A sliced device has no utilisation of its own: NVML refuses, or says a zero that means nothing.
            utilisation_percent=float(rates.gpu) if rates is not None and not sliced else None,
            processes=self._read_processes(index, handle, sliced=sliced),
            note="MIG" if sliced else "",
        )

    def _read_processes(self, index: int, handle: Any, *, sliced: bool) -> list[DeviceProcess] | None:
        compute = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        graphics = self._ask("nvmlDeviceGetGraphicsRunningProcesses", handle)
        if compute is None:
            return None
        memory: dict[int, int | None] = {}
        for process in [*compute, *(graphics or [])]:
            used = getattr(process, "usedGpuMemory", None)
            known = used if used is not None and used < 1 << 60 else None  # all ones is "not available"
            before = memory.get(process.pid, 0)
            memory[process.pid] = known if before is None or known is None else max(known, before)
        percents = None if sliced else self._read_percents(index, handle)
        return [
            DeviceProcess(
                pid=pid,
                memory_bytes=used,
                # Not in the samples: it did nothing since they were last read.
                utilisation_percent=None if percents is None else percents.get(pid, 0.0),
            )
            for pid, used in memory.items()
        ]

    def _read_percents(self, index: int, handle: Any) -> dict[int, float] | None:
        """The highest utilisation of each process since the last call; None where the device does not say."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_at[index])
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) == self._nvml.NVML_ERROR_NOT_FOUND:
                return {}  # nobody did anything
            return None
        percents: dict[int, float] = {}
        for sample in samples:
            self._seen_at[index] = max(self._seen_at[index], int(sample.timeStamp))
            if sample.smUtil <= 100:
                busiest = max(sample.smUtil, sample.encUtil, sample.decUtil)
                percents[sample.pid] = max(percents.get(sample.pid, 0.0), float(min(busiest, 100)))
        return percents

    def _ask(self, name: str, handle: Any) -> Any:
        try:
            return getattr(self._nvml, name)(handle)
        except (self._nvml.NVMLError, AttributeError):
            return None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
