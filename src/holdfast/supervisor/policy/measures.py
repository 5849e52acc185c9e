"""A host's measurements of itself: `python -m holdfast.supervisor.policy.measures`, as a process of
the run, sends them to the script. `judge_host` scores them there."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import ValidationError
from holdfast.supervisor.member.messages import get_message_queue
from holdfast.supervisor.policy.devices import DeviceMeasures, measure_devices

PINGS = 5
PING, PONG = "ping", "pong"
LEAST_MEMORY_BYTES = 256 << 20
SLOWEST_DISK = 5e6  # bytes a second
SLOWEST_ROUND_TRIP_SECONDS = 1.0
LEAST_OF_MEDIAN = 0.8  # of the devices' median; a slower device is broken, or throttled
_ANSWER_SECONDS = 120.0
_DISK_BYTES = 16 << 20


class HostMeasures(msgspec.Struct, kw_only=True):
    """One host's measures. matmul_seconds: the time of a product of matrices on the CPU."""

    memory_bytes: int
    matmul_seconds: float
    disk_bytes_per_second: float
    round_trip_seconds: float
    devices: list[DeviceMeasures] = []


class HostScore(msgspec.Struct, frozen=True):
    """A host's score. score: more is better; 0 is unfit. reason: why the host is unfit, or its
    measures in words."""

    score: float
    reason: str


def judge_host(measures: HostMeasures, gpus: int = 0) -> HostScore:
    """Score a host that must have so many GPUs: by its slowest GPU, or by its CPU where it has
    none."""
    reason = find_fault(measures, gpus)
    if reason is not None:
        return HostScore(0.0, reason)
    speeds = [device.flops for device in measures.devices if device.flops]
    if speeds:
        slowest = min(speeds) / 1e12
        return HostScore(
            slowest, f"fit: the slowest of {len(speeds)} GPUs does {slowest:.0f} TFLOPS"
        )
    return HostScore(1.0 / max(measures.matmul_seconds, 1e-9), "fit, by its CPU")


def find_fault(measures: HostMeasures, gpus: int) -> str | None:
    """Return why a host is unfit; None where it is fit."""
    if len(measures.devices) < gpus:
        return f"{len(measures.devices)} of {gpus} GPUs"
    for device in measures.devices if gpus else ():
        if device.error is not None:
            return f"GPU {device.index}: {device.error}"
        if device.ecc_errors:
            return f"GPU {device.index} counted {device.ecc_errors} uncorrected memory errors"
        if device.slowed:
            return (
                f"the hardware holds GPU {device.index} down, to {device.clock_mhz or 0:.0f} of "
                f"{device.most_clock_mhz or 0:.0f} MHz"
            )
    if gpus:
        slow = _find_slow_device(
            measures, lambda device: device.flops, "TFLOPS"
        ) or _find_slow_device(measures, lambda device: device.copy_bytes_per_second, "TB/s")
        if slow is not None:
            return slow
    if measures.memory_bytes < LEAST_MEMORY_BYTES:
        return f"{measures.memory_bytes >> 20} MiB of memory"
    if measures.disk_bytes_per_second < SLOWEST_DISK:
        return f"a disk of {measures.disk_bytes_per_second / 1e6:.1f} MB/s"
    if measures.round_trip_seconds > SLOWEST_ROUND_TRIP_SECONDS:
        return f"{measures.round_trip_seconds:.2f} s to the supervisor and back"
    return None


def _find_slow_device(
    measures: HostMeasures, speed: Callable[[DeviceMeasures], float | None], unit: str
) -> str | None:
    speeds = [(found, device.index) for device in measures.devices if (found := speed(device))]
    if not speeds:
        return None
    median = statistics.median(found for found, _ in speeds)
    slowest, index = min(speeds)
    if slowest >= LEAST_OF_MEDIAN * median:
        return None
    return f"GPU {index} does {slowest / 1e12:.2f} {unit}, where its like do {median / 1e12:.2f}"


def read_measures(message: Any) -> HostMeasures:
    """Decode the measures that a host sent. Raises ValidationError."""
    try:
        return msgspec.convert(message, HostMeasures)
    except msgspec.MsgspecError as error:
        raise ValidationError(f"these are no measurements of a host: {error}") from error


def measure_host() -> HostMeasures:
    """Measure this host. An error in the measuring makes the host unfit."""
    queue = get_message_queue()
    with open("/proc/meminfo") as lines:
        memory = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}

    def ping() -> None:
        queue.send(PING)
        queue.recv(timeout=_ANSWER_SECONDS)

    return HostMeasures(
        memory_bytes=memory["MemAvailable"],
        matmul_seconds=time_matmul(),
        disk_bytes_per_second=measure_disk(),
        round_trip_seconds=statistics.median(time_once(ping) for _ in range(PINGS)),
        devices=measure_devices(),
    )


def time_matmul() -> float:
    """Return the seconds of a matrix product, the best of three: numpy's, or plain Python's without
    it."""
    try:
        import numpy as np
    except ImportError:
        a = [[float(i ^ j) for j in range(64)] for i in range(64)]
        columns = list(zip(*a, strict=True))

        def multiply() -> object:
            return [
                [sum(x * y for x, y in zip(row, column, strict=True)) for column in columns]
                for row in a
            ]
    else:
        square = np.random.default_rng(0).random((512, 512))

        def multiply() -> object:
            return square @ square

    return min(time_once(multiply) for _ in range(3))


def time_once(function: Callable[[], object]) -> float:
    """Measure the seconds that a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def measure_disk(size_bytes: int = _DISK_BYTES) -> float:
    """Return the bytes a second of writing and syncing a file."""
    with tempfile.TemporaryFile() as file:

        def write() -> None:
            file.write(bytes(size_bytes))
            file.flush()
            os.fsync(file.fileno())

        return size_bytes / time_once(write)


def main() -> None:
    """Measure this host, and send the measures to the script."""
    get_message_queue().send(msgspec.to_builtins(measure_host()))


if __name__ == "__main__":
    main()
