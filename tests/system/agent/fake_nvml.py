"""Looks like `pynvml` to the probe's worker; what it says is in the JSON file named by
FAKE_NVML."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_TIMEOUT = 10
NVML_ERROR_GPU_IS_LOST = 15
nvmlMemory_v2 = 2
nvmlEventTypeXidCriticalError = 8


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__("GPU is lost" if value == NVML_ERROR_GPU_IS_LOST else f"error {value}")
        self.value = value


def _script() -> list[dict[str, Any]]:
    with open(os.environ["FAKE_NVML"]) as file:
        devices: list[dict[str, Any]] = json.load(file)
    return devices


def _ask(handle: int, name: str) -> Any:
    device = _script()[handle]
    if device.get("lost"):
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    value = device.get(name, "unsupported")
    if value == "unsupported":
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    if value == "not found":
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return value


def nvmlInit() -> None:
    _script()


def nvmlDeviceGetCount() -> int:
    return len(_script())


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    if _script()[index].get("lost") == "from the start":
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    return index


def nvmlDeviceGetIndex(handle: int) -> int:
    return handle


_told: list[int] = []


def nvmlEventSetCreate() -> object:
    return _told


def nvmlDeviceRegisterEvents(handle: int, kinds: int, events: object) -> None:
    assert kinds == nvmlEventTypeXidCriticalError


def nvmlEventSetWait_v2(events: object, timeout_ms: int) -> Any:
    """The Xids of the script's devices, each told once."""
    assert timeout_ms == 0
    waiting = [
        (handle, code)
        for handle, device in enumerate(_script())
        for code in device.get("events", [])
    ]
    if len(_told) >= len(waiting):
        raise NVMLError(NVML_ERROR_TIMEOUT)
    handle, code = waiting[len(_told)]
    _told.append(code)
    return SimpleNamespace(device=handle, eventData=code, eventType=8)


def nvmlDeviceGetPciInfo(handle: int) -> Any:
    return SimpleNamespace(busId=_ask(handle, "pci").encode())


def nvmlDeviceGetTotalEccErrors(handle: int, kind: int, counter: int) -> int:
    assert (kind, counter) == (1, 0)
    count: int = _ask(handle, "ecc")
    return count


def nvmlSystemGetDriverVersion() -> str:
    return "580.159.04"


def nvmlDeviceGetMemoryInfo(handle: int, version: int | None = None) -> Any:
    """The first version counts what the driver keeps for itself, `reserved`, as used; a script
    without it is an old driver, which has no second."""
    told = _ask(handle, "memory")
    if version is None:
        return SimpleNamespace(**{**told, "used": told["used"] + told.get("reserved", 0)})
    if "reserved" not in told:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return SimpleNamespace(**told)


def nvmlDeviceGetUtilizationRates(handle: int) -> Any:
    return SimpleNamespace(gpu=_ask(handle, "gpu"))


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> int:
    assert sensor == 0
    degrees: int = _ask(handle, "temperature")
    return degrees


def nvmlDeviceGetCurrentClocksEventReasons(handle: int) -> int:
    bits: int = _ask(handle, "clock_reasons")
    return bits


def nvmlDeviceGetClockInfo(handle: int, clock: int) -> int:
    assert clock == 1
    mhz: int = _ask(handle, "clock")
    return mhz


def nvmlDeviceGetMaxClockInfo(handle: int, clock: int) -> int:
    assert clock == 1
    mhz: int = _ask(handle, "clock_max")
    return mhz


def nvmlDeviceGetCurrPcieLinkWidth(handle: int) -> int:
    lanes: int = _ask(handle, "lanes")
    return lanes


def nvmlDeviceGetMaxPcieLinkWidth(handle: int) -> int:
    lanes: int = _ask(handle, "lanes_max")
    return lanes


def nvmlDeviceGetMigMode(handle: int) -> Any:
    return _ask(handle, "mig")


def nvmlDeviceGetUUID(handle: int) -> str:
    uuid: str = _script()[handle].get("uuid", f"GPU-{handle}")
    return uuid


def nvmlDeviceGetName(handle: int) -> bytes:
    return b"Fake 9000"


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> Any:
    return [SimpleNamespace(**process) for process in _ask(handle, "processes")]


def nvmlDeviceGetGraphicsRunningProcesses(handle: int) -> Any:
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def nvmlDeviceGetProcessUtilization(handle: int, since: int) -> Any:
    found = [
        SimpleNamespace(**{"encUtil": 0, "decUtil": 0, **s})
        for s in _ask(handle, "samples")
        if s["timeStamp"] > since
    ]
    if not found:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return found
