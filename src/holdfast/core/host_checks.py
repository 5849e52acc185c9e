"""The measurements of a host's checks, and the verdict on them.

CHECK-1  The host measures, the controller judges: a broken host does not say that it is well.
- What could not be measured is unknown, and unknown fails nothing; but a check that did not
  end within its deadline fails, because the host hangs where a healthy one answers.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.bounds import Count, DiskBytes, Elapsed, Figure, Instant, Large, MemoryBytes, Whole
from holdfast.core.spec import ShortText

CheckKind = Literal["preflight", "periodic", "failures"]
LowText = Annotated[str, Meta(max_length=4096)]


class CheckVerdict(StrEnum):
    """The verdict of a check, from best to worst."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARN = "warn"
    FAIL = "fail"


_ORDER = list(CheckVerdict)


class DeviceMeasure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU as a check found it. matmul_tflops: speed of a small half-precision matrix product;
    None where neither torch nor cupy is installed, or a task has the device's memory. error: why
    the product failed. burn_rounds, burn_wrong: how often one product was computed for its bits, and
    how often these differed (the burn-in); None: not tried."""

    index: Annotated[int, Meta(ge=0, le=1023)]
    model: ShortText = ""
    memory_bytes: MemoryBytes = 0
    matmul_tflops: Figure | None = None
    ecc_errors: Large | None = None
    error: LowText = ""
    burn_rounds: Count | None = None
    burn_wrong: Count | None = None


class Measured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The measurements of a host. None: not measured.

    clock_unix: the host's clock when it sent them. mounts: path → why it cannot be used, "" where
    it can. script_status: exit status of the user's script; script_output: the end of its output.
    missed: names of the parts that did not end within the deadline. seconds: how long it all took.
    """

    devices: Annotated[list[DeviceMeasure], Meta(max_length=1024)] = []
    driver: ShortText = ""
    cpu_count: Count | None = None
    memory_bytes: MemoryBytes | None = None
    disk_free_bytes: DiskBytes | None = None
    disk_mb_per_second: Figure | None = None
    clock_unix: Instant | None = None
    mounts: Annotated[dict[str, LowText], Meta(max_length=64)] = {}
    versions: Annotated[dict[str, ShortText], Meta(max_length=64)] = {}
    script_status: Whole | None = None
    script_output: LowText = ""
    missed: Annotated[list[ShortText], Meta(max_length=32)] = []
    seconds: Elapsed = 0.0


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements that a host must reach. 0 or None: not checked.

    gpu_memory_bytes: memory of each device; five per cent less passes, because drivers keep some.
    tflops_spread: how many times slower than the fastest device the slowest may be.
    """

    gpus: int = 0
    gpu_memory_bytes: int = 0
    memory_bytes: int = 0
    disk_free_bytes: int = 0
    disk_mb_per_second: float = 0.0
    clock_skew_seconds: float | None = 5.0
    mounts: tuple[str, ...] = ()
    tflops_spread: float = 1.5
    version: str = ""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one measurement."""

    name: str
    verdict: CheckVerdict
    message: str


def judge(measured: Measured, expected: Expected, clock_unix: float) -> tuple[CheckResult, ...]:
    """Return a result for each expectation. clock_unix: the controller's clock when the report
    came."""
    found = [
        *_judge_devices(measured, expected),
        *_judge_sizes(measured, expected),
        *_judge_mounts(measured, expected),
    ]
    if measured.clock_unix is not None and expected.clock_skew_seconds is not None:
        skew = measured.clock_unix - clock_unix
        far = abs(skew) > expected.clock_skew_seconds
        found.append(_say("clock", far, f"its clock is {skew:+.1f} s off", CheckVerdict.WARN))
    if measured.script_status is not None:
        status, output = measured.script_status, measured.script_output.strip()[-300:]
        said = f"its script ended with {status}" + (f": {output}" if output else "")
        found.append(_say("script", status != 0, said))
    here = measured.versions.get("holdfast", "")
    if expected.version and here:
        said = f"its agent is {here}, the controller {expected.version}"
        found.append(_say("version", here != expected.version, said, CheckVerdict.WARN))
    for part in measured.missed:
        late = f"{part} did not end within the deadline"
        found.append(CheckResult(name=part, verdict=CheckVerdict.FAIL, message=late))
    return tuple(found)


def find_worst(results: Sequence[CheckResult]) -> CheckVerdict:
    """Return the verdict on the whole host; `ok` without any result."""
    worst = max((result.verdict for result in results), key=_ORDER.index, default=CheckVerdict.OK)
    return CheckVerdict.OK if worst is CheckVerdict.UNKNOWN else worst


def describe(results: Sequence[CheckResult]) -> str:
    """Return the messages of the worst results, or how many checks passed."""
    worst = find_worst(results)
    if worst is CheckVerdict.OK:
        return f"{len(results)} checks passed"
    return "; ".join(r.message for r in results if r.verdict is worst)


def _say(
    name: str, bad: bool, message: str, worst: CheckVerdict = CheckVerdict.FAIL
) -> CheckResult:
    return CheckResult(name=name, verdict=worst if bad else CheckVerdict.OK, message=message)


def _judge_devices(measured: Measured, expected: Expected) -> list[CheckResult]:
    devices, found = measured.devices, []
    if expected.gpus:
        said = f"{len(devices)} GPUs are there, {expected.gpus} were rented"
        found.append(_say("gpus", len(devices) < expected.gpus, said))
    if expected.gpu_memory_bytes:
        for device in devices:
            small = device.memory_bytes < expected.gpu_memory_bytes * 0.95
            has, wants = device.memory_bytes / 2**30, expected.gpu_memory_bytes / 2**30
            said = f"GPU {device.index} has {has:.1f} GiB of {wants:.1f}"
            found.append(_say(f"gpu {device.index} memory", small, said))
    for device in devices:
        if device.error:
            said = f"GPU {device.index} cannot compute: {device.error[:200]}"
            found.append(_say(f"gpu {device.index}", True, said))
        if device.burn_rounds:
            wrong = device.burn_wrong or 0
            said = (
                f"GPU {device.index} computed one product differently in {wrong} of "
                f"{device.burn_rounds} tries"
            )
            found.append(_say(f"gpu {device.index} burn-in", wrong > 0, said))
        if device.ecc_errors:
            said = f"GPU {device.index} has {device.ecc_errors} uncorrected memory errors"
            found.append(_say(f"gpu {device.index} ecc", True, said))
    speeds = {d.index: d.matmul_tflops for d in devices if d.matmul_tflops}
    if speeds:
        slow, fast = (
            min(speeds, key=lambda i: speeds[i] or 0.0),
            max(v or 0.0 for v in speeds.values()),
        )
        least = speeds[slow] or 0.0
        said = f"the slowest device, GPU {slow}, multiplies at {least:.1f} of {fast:.1f} TFLOP/s"
        bad = least * expected.tflops_spread < fast
        found.append(_say("matmul", bad, said, CheckVerdict.WARN))
    elif devices:
        said = "no product was tried: there is no torch or cupy, or a task has the memory"
        found.append(CheckResult(name="matmul", verdict=CheckVerdict.UNKNOWN, message=said))
    return found


def _judge_sizes(measured: Measured, expected: Expected) -> list[CheckResult]:
    found = []
    for name, has, wants, unit in (
        ("memory", measured.memory_bytes, expected.memory_bytes * 0.9, 2**30),
        ("disk space", measured.disk_free_bytes, expected.disk_free_bytes, 2**30),
    ):
        if wants and has is not None:
            said = f"{has / unit:.1f} GiB of {name} are there, {wants / unit:.1f} are asked for"
            found.append(_say(name, has < wants, said))
    speed, least = measured.disk_mb_per_second, expected.disk_mb_per_second
    if speed is not None and least:
        said = f"its disk writes {speed:.0f} MB/s, {least:.0f} are asked for"
        found.append(_say("disk speed", speed < least, said, CheckVerdict.WARN))
    return found


def _judge_mounts(measured: Measured, expected: Expected) -> list[CheckResult]:
    found = []
    for path in expected.mounts:
        why = measured.mounts.get(path)
        if why is None:
            said = f"{path} was not looked at"
            found.append(CheckResult(name=path, verdict=CheckVerdict.UNKNOWN, message=said))
        else:
            found.append(_say(path, bool(why), f"{path}: {why}" if why else f"{path} can be used"))
    return found
