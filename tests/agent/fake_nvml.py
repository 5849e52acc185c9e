"""Looks like `pynvml` to the probe's worker; what it says is in the JSON file named by FAKE_NVML."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_NOT_SUPPORTED = 3


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


def _script() -> list[dict[str, Any]]:
    with open(os.environ["FAKE_NVML"]) as file:
        devices: list[dict[str, Any]] = json.load(file)
    return devices


def _ask(handle: int, name: str) -> Any:
    value = _script()[handle].get(name, "unsupported")
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
    return index


def nvmlDeviceGetMemoryInfo(handle: int) -> Any:
    return SimpleNamespace(**_ask(handle, "memory"))


def nvmlDeviceGetUtilizationRates(handle: int) -> Any:
    return SimpleNamespace(gpu=_ask(handle, "gpu"))


def nvmlDeviceGetMigMode(handle: int) -> Any:
    return _ask(handle, "mig")


def nvmlDeviceGetUUID(handle: int) -> str:
    return f"GPU-{handle}"


def nvmlDeviceGetName(handle: int) -> bytes:
    return b"Fake 9000"


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> Any:
    return [SimpleNamespace(**process) for process in _ask(handle, "processes")]


def nvmlDeviceGetGraphicsRunningProcesses(handle: int) -> Any:
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def nvmlDeviceGetProcessUtilization(handle: int, since: int) -> Any:
    found = [
        SimpleNamespace(**{"encUtil": 0, "decUtil": 0, **s}) for s in _ask(handle, "samples") if s["timeStamp"] > since
    ]
    if not found:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return found
