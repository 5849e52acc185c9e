"""Measure a host, in a process: `python -m holdfast.agent.health.measure`, with the order on stdin
(`agent/health/parts.py`)."""

import functools
import importlib.util
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.agent.health.parts import report_parts
from holdfast.bounds import MAX_DISK_BYTES
from holdfast.core.host_checks import DeviceMeasure
from holdfast.version import VERSION

MATMUL_SIZE = 4096
MATMUL_ROUNDS = 10  # products in one try: an H100 needs 2 ms, a launch 10 µs
MATMUL_TRIES = 5
_BLOCK = 1 << 20
_MAX_OUTPUT_CHARS = 4096


class MeasureOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order to the measuring process.

    folder: a folder on the disk that tasks write to. disk_mb: the megabytes to write; 0 to measure
    no disk. mounts: the paths to try. script: the operator's shell script. multiply: True to try a
    product of matrices on each device. burn_seconds: how long to repeat one for its bits, on each.
    """

    folder: str
    disk_mb: float = 0.0
    mounts: tuple[str, ...] = ()
    script: str | None = None
    multiply: bool = False
    burn_seconds: float = 0.0

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of the parts that are measured."""
        optional = (
            ("disk", self.disk_mb > 0),
            ("mounts", bool(self.mounts)),
            ("script", self.script is not None),
            ("driver", self.multiply),
            ("devices", self.multiply),
        )
        return ("sizes", "versions", *(name for name, wanted in optional if wanted))


Fragment = dict[str, Any]


def measure_sizes(order: MeasureOrder) -> Fragment:
    """Count processors, memory and free disk."""
    disk = os.statvfs(order.folder)
    return {
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "disk_free_bytes": min(disk.f_bavail * disk.f_frsize, MAX_DISK_BYTES),
    }


def measure_disk(order: MeasureOrder) -> Fragment:
    """Time the write of a file through to the disk, and return the speed, which is 0 if the disk
    cannot be written."""
    path = os.path.join(order.folder, f".holdfast-disk-check-{os.getpid()}")
    blocks = max(1, int(order.disk_mb * 1_000_000 / _BLOCK))
    data = os.urandom(_BLOCK)
    try:
        began = time.perf_counter()
        with open(path, "wb") as file:
            for _ in range(blocks):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        seconds = time.perf_counter() - began
    except OSError:
        return {"disk_mb_per_second": 0.0}
    finally:
        if os.path.exists(path):
            os.unlink(path)
    return {"disk_mb_per_second": blocks * _BLOCK / 1e6 / max(seconds, 1e-6)}


def measure_mounts(order: MeasureOrder) -> Fragment:
    """Read each path, as a task would."""
    return {"mounts": {path: _try_path(path) for path in order.mounts}}


def _try_path(path: str) -> str:
    try:
        os.listdir(path) if os.path.isdir(path) else os.stat(path)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def measure_versions(order: MeasureOrder) -> Fragment:
    """Return the versions of Holdfast, Python and the libraries that matter to a task."""
    from importlib import metadata  # its import is slow, and each agent imports this module

    found = {"holdfast": VERSION, "python": sys.version.split()[0]}
    for name in ("torch", "cupy", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"versions": found}


def run_script(order: MeasureOrder) -> Fragment:
    """Run the operator's script."""
    done = subprocess.run(
        ["/bin/sh", "-c", order.script or ":"],
        cwd=order.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    text = done.stdout.decode(errors="replace")[-_MAX_OUTPUT_CHARS:]
    return {"script_status": done.returncode, "script_output": text}


def measure_driver(order: MeasureOrder) -> Fragment:
    """Read the drivers' versions, and the count of uncorrectable memory errors of each device."""
    from holdfast.agent.probes.worker import open_readers, read_devices

    readers, _ = open_readers("pynvml", "/")
    counted = {
        str(device.index): device.ecc_errors
        for device in read_devices(readers, 0, deep=True).devices
        if device.ecc_errors is not None
    }
    versions = [found for reader in readers if (found := reader.read_version())]
    return {"driver": ", ".join(versions), "ecc_errors": counted}


def measure_devices(order: MeasureOrder) -> Fragment:
    """Multiply a matrix on each device; do nothing if neither torch nor cupy is installed."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # numbers devices as the drivers do
    # Else cuBLAS may add up in another order, by the room that it has.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if importlib.util.find_spec("torch") is not None:
        return {"devices": _multiply_torch(order.burn_seconds)}
    if importlib.util.find_spec("cupy") is not None:
        return {"devices": _multiply_cupy()}
    return {"devices": []}


def time_best(multiply: Callable[[], object], synchronize: Callable[[], object]) -> float:
    """Return the seconds of the fastest of `MATMUL_TRIES` tries, each of `MATMUL_ROUNDS` products.

    The first tries are slower, because kernels are loaded at their first use, and a device's clock
    rises with its work.
    """
    best = math.inf
    for _ in range(MATMUL_TRIES):
        synchronize()
        began = time.perf_counter()
        for _ in range(MATMUL_ROUNDS):
            multiply()
        synchronize()
        best = min(best, time.perf_counter() - began)
    return best


def burn(multiply: Callable[[], bytes], seconds: float) -> tuple[int, int]:
    """Compute one product again and again for so long; return how often, and how many of the
    results differ from the most frequent result. multiply: computes it from the same numbers,
    returns a digest."""
    seen: Counter[bytes] = Counter()
    until = time.monotonic() + seconds
    while not seen or time.monotonic() < until:
        seen[multiply()] += 1
    rounds = seen.total()
    return rounds, rounds - seen.most_common(1)[0][1]


def _burn_torch(count: int, seconds: float) -> dict[int, tuple[int, int]]:
    """Repeat a product on each device, all at once, because a device errs most when all of them
    draw power and are hot."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    def burn_one(index: int) -> tuple[int, int]:
        device = torch.device("cuda", index)
        dice = torch.Generator().manual_seed(1)
        matrix = torch.randn(MATMUL_SIZE, MATMUL_SIZE, generator=dice).to(device, torch.float16)
        product = torch.empty_like(matrix)

        def multiply() -> bytes:
            for _ in range(MATMUL_ROUNDS):
                torch.mm(matrix, matrix, out=product)
            bits = product.view(torch.int16).to(torch.int64)
            places = torch.arange(1, MATMUL_SIZE + 1, device=device)
            sums = torch.stack(((bits * places).sum(), (bits.T * places).sum()))
            return repr(sums.tolist()).encode()

        return burn(multiply, seconds)

    with ThreadPoolExecutor(max(1, count)) as pool:
        done = {index: pool.submit(burn_one, index) for index in range(count)}
    return {index: one.result() for index, one in done.items() if one.exception() is None}


def _multiply_torch(burn_seconds: float) -> list[DeviceMeasure]:
    import torch

    def multiply(index: int) -> float:
        device = torch.device("cuda", index)
        matrix = torch.randn(MATMUL_SIZE, MATMUL_SIZE, device=device, dtype=torch.float16)
        product = torch.mm(matrix, matrix)
        seconds = time_best(
            lambda: torch.mm(matrix, matrix, out=product), lambda: torch.cuda.synchronize(device)
        )
        if not bool(torch.isfinite(product).all()):
            raise ArithmeticError("the product is not finite")
        return seconds

    count = torch.cuda.device_count()
    found = multiply_each(count, multiply)
    burnt = _burn_torch(count, burn_seconds) if burn_seconds > 0 else {}
    return [
        msgspec.structs.replace(
            one, burn_rounds=burnt[one.index][0], burn_wrong=burnt[one.index][1]
        )
        if one.index in burnt
        else one
        for one in found
    ]


def _multiply_cupy() -> list[DeviceMeasure]:
    import cupy

    def multiply(index: int) -> float:
        with cupy.cuda.Device(index) as device:
            matrix = cupy.random.rand(MATMUL_SIZE, MATMUL_SIZE).astype(cupy.float16)
            return time_best(lambda: cupy.matmul(matrix, matrix), device.synchronize)

    return multiply_each(cupy.cuda.runtime.getDeviceCount(), multiply)


def multiply_each(count: int, multiply: Callable[[int], float]) -> list[DeviceMeasure]:
    """Return the speed or the error of the product on each device."""
    found = []
    for index in range(count):
        try:
            seconds = multiply(index)
        except Exception as error:  # each driver fails in its own way
            if "out of memory" in str(error).lower():  # a task uses the memory, which is no fault
                found.append(DeviceMeasure(index=index))
                continue
            found.append(DeviceMeasure(index=index, error=f"{type(error).__name__}: {error}"[:500]))
        else:
            tflops = 2 * MATMUL_SIZE**3 * MATMUL_ROUNDS / seconds / 1e12
            found.append(DeviceMeasure(index=index, matmul_tflops=tflops))
    return found


PARTS: dict[str, Callable[[MeasureOrder], Fragment]] = {
    "sizes": measure_sizes,
    "disk": measure_disk,
    "mounts": measure_mounts,
    "versions": measure_versions,
    "script": run_script,
    "driver": measure_driver,
    "devices": measure_devices,
}


def main() -> int:
    """Measure every part of the order, and print the findings of each."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=MeasureOrder)
    return report_parts({part: functools.partial(PARTS[part], order) for part in order.parts})


if __name__ == "__main__":
    raise SystemExit(main())
