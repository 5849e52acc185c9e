"""Measured against expected: each thing has its verdict and its sentence."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.host_checks import (
    CheckVerdict,
    DeviceMeasure,
    Expected,
    Measured,
    describe,
    find_worst,
    judge,
)

GIB = 1 << 30
NOW = 1_000_000.0


def device(index: int = 0, **changes: Any) -> DeviceMeasure:
    return DeviceMeasure(**{"index": index, "memory_bytes": 80 * GIB, **changes})


def verdict(measured: Measured, **expected: Any) -> tuple[CheckVerdict, str]:
    results = judge(measured, Expected(**expected), NOW)
    return find_worst(results), describe(results)


@pytest.mark.parametrize(
    ("measured", "expected", "worst", "says"),
    [
        (Measured(devices=[device()]), {"gpus": 2}, "fail", "1 GPUs are there, 2 were rented"),
        (
            Measured(devices=[device(memory_bytes=40 * GIB)]),
            {"gpu_memory_bytes": 80 * GIB},
            "fail",
            "GPU 0 has 40.0 GiB of 80.0",
        ),
        (
            Measured(devices=[device(memory_bytes=79 * GIB)]),
            {"gpu_memory_bytes": 80 * GIB},
            "ok",
            "checks passed",
        ),
        (Measured(devices=[device(error="CUDA error")]), {}, "fail", "GPU 0 cannot compute"),
        (Measured(devices=[device(ecc_errors=3)]), {}, "fail", "3 uncorrected memory errors"),
        (
            Measured(devices=[device(0, matmul_tflops=300.0), device(1, matmul_tflops=100.0)]),
            {},
            "warn",
            "the slowest device, GPU 1, multiplies at 100.0 of 300.0",
        ),
        (Measured(devices=[device()]), {"gpus": 1}, "ok", "checks passed"),
        (Measured(disk_free_bytes=GIB), {"disk_free_bytes": 10 * GIB}, "fail", "disk space"),
        (Measured(disk_mb_per_second=20.0), {"disk_mb_per_second": 100.0}, "warn", "20 MB/s"),
        (Measured(clock_unix=NOW + 60), {}, "warn", "+60.0 s off"),
        (Measured(clock_unix=NOW + 1), {}, "ok", "passed"),
        (Measured(mounts={"/data": "Stale file handle"}), {"mounts": ("/data",)}, "fail", "/data"),
        (Measured(mounts={"/data": ""}), {"mounts": ("/data",)}, "ok", "passed"),
        (Measured(script_status=3, script_output="no fabric\n"), {}, "fail", "no fabric"),
        (Measured(versions={"holdfast": "0.0.9"}), {"version": "0.1.0"}, "warn", "0.0.9"),
        (Measured(missed=["mounts"]), {}, "fail", "mounts did not end within the deadline"),
        (Measured(), {"mounts": ("/data",)}, "ok", "passed"),  # unknown fails nothing
    ],
)
def test_each_thing_has_its_verdict(
    measured: Measured, expected: dict[str, Any], worst: str, says: str
) -> None:
    found, message = verdict(measured, **expected)
    assert found == worst
    assert says in message


def test_the_worst_counts_and_only_its_sentences_are_said() -> None:
    measured = Measured(clock_unix=NOW + 60, devices=[device(error="lost")])
    found, message = verdict(measured)
    assert found is CheckVerdict.FAIL
    assert "clock" not in message
