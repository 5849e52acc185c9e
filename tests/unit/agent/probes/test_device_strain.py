"""What may make a device slow, in words, as NVML's answers say it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.probes.nvidia import NvidiaReader
from holdfast.core.gpus import GpuTelemetry
from holdfast.core.stragglers.words import say_readings
from tests.system.agent import fake_nvml

MEMORY = {"total": 80 << 30, "used": 0, "reserved": 0}


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({}, ""),
        ({"clock_reasons": 0x01, "clock": 210, "clock_max": 1980}, ""),  # idle
        (
            {"clock_reasons": 0x20 | 0x04, "clock": 1200, "clock_max": 1980},
            "clock held down by its power cap and its temperature at 1200 of 1980 MHz",
        ),
        ({"clock_reasons": 0x80}, "clock held down by the power supply"),
        ({"lanes": 8, "lanes_max": 16}, "PCIe link of 8 lanes, of 16"),
        ({"lanes": 16, "lanes_max": 16, "ecc": 0}, ""),
        ({"ecc": 3}, "3 uncorrected memory errors"),
    ],
)
def test_a_device_says_what_strains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], says: str
) -> None:
    script = tmp_path / "nvml.json"
    script.write_text(json.dumps([{"memory": MEMORY, "processes": [], **told}]))
    monkeypatch.setenv("FAKE_NVML", str(script))
    (device,) = NvidiaReader(fake_nvml).read()
    assert device.strain == says


@pytest.mark.parametrize(
    ("gpus", "strain", "says"),
    [
        ([], "", ""),
        ([GpuTelemetry(index=0, temperature_celsius=40.0)], "", ""),
        ([GpuTelemetry(index=3, temperature_celsius=88.0)], "", "GPU 3 at 88 °C"),
        (
            [GpuTelemetry(index=3, strain="PCIe link of 8 lanes, of 16")],
            "its network interfaces counted 2 errors",
            "on its host its network interfaces counted 2 errors; GPU 3: PCIe link of 8 lanes, of 16",
        ),
    ],
)
def test_the_sentence_beside_a_slow_rank_says_what_strains_its_host(
    gpus: list[GpuTelemetry], strain: str, says: str
) -> None:
    assert say_readings(gpus, strain) == says
