"""Measurements of a host's GPUs, one by one: how fast they compute and copy, and their memory
errors and clocks as the driver reports them. A device that is slow or broken slows every rank of a
run.

Computing and copying are measured with torch, on NVIDIA and AMD; the rest comes from nvidia-smi. A
value that neither can measure is left out.
"""

import glob
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

TOOL_SECONDS = 20.0
SIDE = 8192  # of the matrices, in bfloat16: 128 MiB each
PRODUCTS = 8
COPY_BYTES = 1 << 28
_FIELDS = {
    "index": "index",
    "ecc_errors": "ecc.errors.uncorrected.volatile.total",
    "clock_mhz": "clocks.sm",
    "most_clock_mhz": "clocks.max.sm",
    "slowed": "clocks_throttle_reasons.hw_slowdown",
}


class DeviceMeasures(msgspec.Struct, kw_only=True):
    """One GPU's measures. flops: operations a second. slowed: True where the hardware holds its
    clocks down, because of heat or power. error: why it could not be measured."""

    index: int
    flops: float | None = None
    copy_bytes_per_second: float | None = None
    ecc_errors: int | None = None
    clock_mhz: float | None = None
    most_clock_mhz: float | None = None
    slowed: bool = False
    error: str | None = None


def measure_devices() -> list[DeviceMeasures]:
    """Measure every GPU that this process sees; an empty list without any."""
    devices = {device.index: device for device in time_devices()}
    for said in ask_driver():
        index = int(said["index"])
        device = devices.setdefault(index, DeviceMeasures(index=index))
        device.ecc_errors = _read_number(said.get("ecc_errors"), int)
        device.clock_mhz = _read_number(said.get("clock_mhz"), float)
        device.most_clock_mhz = _read_number(said.get("most_clock_mhz"), float)
        device.slowed = said.get("slowed") == "Active"
    for index in range(len(devices), count_device_files()):
        devices.setdefault(index, DeviceMeasures(index=index))
    return [devices[index] for index in sorted(devices)]


def count_device_files() -> int:
    """Count the GPUs by the kernel's device files, for hosts where no tool can be asked."""
    nodes = Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    return len(glob.glob("/dev/nvidia[0-9]*")) or sum(
        node.read_text().strip() not in ("", "0") for node in nodes
    )


def time_devices() -> list[DeviceMeasures]:
    """Time a product and a copy on each device that torch sees; an empty list without torch."""
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    measured = []
    for index in range(torch.cuda.device_count()):
        device = DeviceMeasures(index=index)
        try:
            _time_device(torch, device)
        except RuntimeError as error:  # CUDA's own, a device that fell off its bus for example
            device.error = str(error).partition("\n")[0]
        measured.append(device)
    return measured


def _time_device(torch: Any, device: DeviceMeasures) -> None:
    where = f"cuda:{device.index}"
    a = torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device=where)
    b = torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device=where)
    product = a @ b
    if not torch.equal(product, a @ b):
        device.error = "it computed the same product twice, with two results"
        return

    def multiply() -> None:
        for _ in range(PRODUCTS):
            torch.mm(a, b, out=product)

    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=where)
    target = torch.empty_like(source)

    def copy() -> None:
        for _ in range(PRODUCTS):
            target.copy_(source)

    device.flops = 2.0 * SIDE**3 * PRODUCTS / _time_best(torch, device.index, multiply)
    moved = 2.0 * COPY_BYTES * PRODUCTS  # read and written
    device.copy_bytes_per_second = moved / _time_best(torch, device.index, copy)


def _time_best(torch: Any, index: int, work: Callable[[], None]) -> float:
    """Return the seconds of the fastest of three runs, because the first run warms the device up,
    and other users of the host may slow any run."""
    best = float("inf")
    for _ in range(3):
        torch.cuda.synchronize(index)
        began = time.perf_counter()
        work()
        torch.cuda.synchronize(index)
        best = min(best, time.perf_counter() - began)
    return max(best, 1e-9)


def ask_driver() -> list[dict[str, str]]:
    """Ask nvidia-smi about every device; an empty list where it is missing, or hangs as it does on
    a bad card."""
    words = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS.values())}"]
    try:
        done = subprocess.run(
            [*words, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    rows = [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()]
    return [
        dict(zip(_FIELDS, row, strict=True))
        for row in rows
        if len(row) == len(_FIELDS) and row[0].isdigit()
    ]


def _read_number(word: str | None, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(word or "")
    except ValueError:  # "[N/A]" of a card without ECC
        return None
