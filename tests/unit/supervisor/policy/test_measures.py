"""What a host says of its GPUs, against stand-ins for torch and nvidia-smi, and how it is judged."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import ValidationError
from holdfast.supervisor.policy import devices
from holdfast.supervisor.policy.devices import DeviceMeasures, ask_driver, measure_devices
from holdfast.supervisor.policy.measures import HostMeasures, judge_host, read_measures


class FakeTorch:
    """torch, as far as the measurements go: every device takes its own time for a product."""

    bfloat16 = uint8 = None

    def __init__(self, *products_seconds: float) -> None:
        self._seconds = products_seconds
        self.broken: set[int] = set()
        self.odd: set[int] = set()
        self._compared = 0
        self.cuda = SimpleNamespace(
            is_available=lambda: bool(products_seconds),
            device_count=lambda: len(products_seconds),
            synchronize=lambda index: None,
        )

    def randn(self, *sides: int, dtype: Any, device: str) -> Any:
        index = int(device.removeprefix("cuda:"))
        if index in self.broken:
            raise RuntimeError("CUDA error: device-side assert\nand more lines")
        return FakeMatrix(index)

    def equal(self, one: Any, other: Any) -> bool:
        return one.index not in self.odd

    def mm(self, a: Any, b: Any, out: Any) -> None:
        time.sleep(self._seconds[a.index])

    def empty(self, size: int, dtype: Any, device: str) -> Any:
        return FakeMatrix(0)

    def empty_like(self, other: Any) -> Any:
        return other


class FakeMatrix:
    def __init__(self, index: int) -> None:
        self.index = index

    def __matmul__(self, other: FakeMatrix) -> FakeMatrix:
        return FakeMatrix(self.index)

    def copy_(self, other: FakeMatrix) -> None:
        pass


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of nvidia-smi; it prints this file, and writes down what it is asked."""
    said = tmp_path / "said"
    said.write_text("")
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {said}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return said


def have(monkeypatch: pytest.MonkeyPatch, torch: FakeTorch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(devices, "count_device_files", lambda: 0)


def make(*found: DeviceMeasures) -> HostMeasures:
    return HostMeasures(
        memory_bytes=1 << 30,
        matmul_seconds=0.5,
        disk_bytes_per_second=1e9,
        round_trip_seconds=0.01,
        devices=list(found),
    )


def test_every_device_is_timed_and_the_slowest_counts(
    monkeypatch: pytest.MonkeyPatch, driver: Path
) -> None:
    have(monkeypatch, FakeTorch(0.002, 0.02))
    driver.write_text("0, 0, 1980, 1980, Not Active\n1, [N/A], 1900, 1980, Not Active\n")
    fast, slow = measure_devices()
    assert fast.flops is not None
    assert slow.flops is not None
    assert fast.flops > slow.flops > 0
    assert fast.copy_bytes_per_second is not None
    assert (fast.ecc_errors, slow.ecc_errors) == (0, None)
    assert (fast.clock_mhz, fast.most_clock_mhz) == (1980.0, 1980.0)
    found = judge_host(make(fast, slow), gpus=2)
    assert found.score == 0
    assert found.reason.startswith("GPU 1 does ")
    alike = [DeviceMeasures(index=n, flops=f) for n, f in enumerate((7e14, 6.5e14, 7.2e14))]
    assert judge_host(make(*alike), gpus=3).score == pytest.approx(650)
    assert "the slowest of 3 GPUs does 650 TFLOPS" in judge_host(make(*alike), gpus=3).reason


def test_a_device_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, driver: Path) -> None:
    torch = FakeTorch(0.001, 0.001, 0.001)
    torch.broken, torch.odd = {1}, {2}
    have(monkeypatch, torch)
    found = measure_devices()
    assert [device.error for device in found] == [
        None,
        "CUDA error: device-side assert",
        "it computed the same product twice, with two results",
    ]
    assert judge_host(make(*found), 3).reason == "GPU 1: CUDA error: device-side assert"


def test_without_torch_the_driver_is_asked_and_without_both_files_are_counted(
    monkeypatch: pytest.MonkeyPatch, driver: Path, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(devices, "count_device_files", lambda: 2)
    driver.write_text("0, 3, 1200, 1980, Active\n")
    first, second = measure_devices()
    assert (first.ecc_errors, first.slowed, second) == (3, True, DeviceMeasures(index=1))
    assert "ecc.errors.uncorrected" in (tmp_path / "asked").read_text()
    driver.write_text("No devices were found\n")
    assert ask_driver() == []
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert ask_driver() == []
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(devices, "TOOL_SECONDS", 0.2)
    assert ask_driver() == [], "it hangs on a bad card"


@pytest.mark.parametrize(
    ("measures", "gpus", "reason"),
    [
        (make(), 1, "0 of 1 GPUs"),
        (
            make(DeviceMeasures(index=0, ecc_errors=3)),
            1,
            "GPU 0 counted 3 uncorrected memory errors",
        ),
        (
            make(DeviceMeasures(index=0, slowed=True, clock_mhz=345.0, most_clock_mhz=1980.0)),
            1,
            "the hardware holds GPU 0 down, to 345 of 1980 MHz",
        ),
        (
            make(
                DeviceMeasures(index=0, copy_bytes_per_second=3e12),
                DeviceMeasures(index=1, copy_bytes_per_second=3e12),
                DeviceMeasures(index=2, copy_bytes_per_second=1e12),
            ),
            3,
            "GPU 2 does 1.00 TB/s, where its like do 3.00",
        ),
    ],
)
def test_an_unfit_host_scores_nothing(measures: HostMeasures, gpus: int, reason: str) -> None:
    found = judge_host(measures, gpus)
    assert (found.score, found.reason) == (0.0, reason)


def test_what_is_no_gpu_matter_counts_without_gpus_too() -> None:
    assert judge_host(make()).score == pytest.approx(2.0)
    assert (
        "MiB of memory"
        in judge_host(
            HostMeasures(
                memory_bytes=1, matmul_seconds=1, disk_bytes_per_second=1e9, round_trip_seconds=0.1
            )
        ).reason
    )
    assert (
        "a disk of 1.0 MB/s"
        in judge_host(
            HostMeasures(
                memory_bytes=1 << 30,
                matmul_seconds=1,
                disk_bytes_per_second=1e6,
                round_trip_seconds=0.1,
            )
        ).reason
    )
    assert (
        "to the supervisor and back"
        in judge_host(
            HostMeasures(
                memory_bytes=1 << 30,
                matmul_seconds=1,
                disk_bytes_per_second=1e9,
                round_trip_seconds=2.0,
            )
        ).reason
    )
    bad = make(DeviceMeasures(index=0, ecc_errors=3))
    assert judge_host(bad, gpus=0).score > 0, "a run that uses no GPU is not kept from the host"
    with pytest.raises(ValidationError, match="no measurements"):
        read_measures({"memory_bytes": "much"})
