"""The agent's health checks, with the real measuring process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.health.checks import HealthChecks, gather, measure
from holdfast.agent.health.measure import (
    MATMUL_ROUNDS,
    MeasureOrder,
    burn,
    measure_driver,
    multiply_each,
    time_best,
)
from holdfast.core.gpus import Gpu
from holdfast.core.host_checks import Expected, judge
from holdfast.errors import Unavailable
from holdfast.wire.health import HealthAnswer, HealthOrder, HealthRequest
from tests.system.agent import fake_nvml
from tests.waits import in_time, is_alive, stretch, within

GPU = Gpu(index=0, memory_bytes=1 << 30, vendor="declared")


async def test_every_part_is_measured(tmp_path: Path) -> None:
    asked = MeasureOrder(
        folder=str(tmp_path),
        disk_mb=2,
        mounts=(str(tmp_path), "/nowhere"),
        script="echo hi; exit 3",
    )
    found = gather(asked, await measure(asked, 60.0), [GPU], seconds=1.0)
    assert not found.missed
    assert min(found.cpu_count or 0, found.memory_bytes or 0, found.disk_free_bytes or 0) > 0
    assert found.disk_mb_per_second
    assert found.mounts == {str(tmp_path): "", "/nowhere": "No such file or directory"}
    assert (found.script_status, found.script_output) == (3, "hi\n")
    assert found.devices[0].memory_bytes == 1 << 30
    assert os.listdir(tmp_path) == [], "the file for the disk's speed is gone"


async def test_a_part_that_hangs_is_missed_and_hides_no_other(tmp_path: Path) -> None:
    """HCHK-1."""
    ran = tmp_path / "pid"
    asked = MeasureOrder(folder=str(tmp_path), script=f"echo $$ > {ran}; exec sleep 4321")
    found = gather(asked, await measure(asked, stretch(5.0)), [], seconds=5.0)
    assert found.missed == ["script"]
    assert found.cpu_count
    pid = int(ran.read_text())
    async with within(20):  # it was killed, and is not our child, so its end is not reported
        while is_alive(pid):
            await asyncio.sleep(0.01)


def test_memory_errors_and_versions_come_from_the_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An H100's check named neither before."""
    script = tmp_path / "nvml.json"
    told = {"memory": {"total": 80 << 30, "used": 0}, "processes": []}
    script.write_text(json.dumps([{**told, "ecc": 0}, {**told, "ecc": 2}]))
    monkeypatch.setenv("FAKE_NVML", str(script))
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)
    asked = MeasureOrder(folder=str(tmp_path), multiply=True)
    fragment = {"part": "driver", "found": measure_driver(asked)}
    gpus = [Gpu(index=index, memory_bytes=80 << 30) for index in range(3)]
    found = gather(asked, [fragment], gpus, seconds=1.0)
    assert found.driver == "580.159.04"
    assert [device.ecc_errors for device in found.devices] == [0, 2, None]
    verdicts = {r.name: r.verdict for r in judge(found, Expected(), 0.0)}
    assert verdicts["gpu 1 ecc"] == "fail"
    assert "gpu 0 ecc" not in verdicts


def test_the_speed_of_a_product_is_its_best_and_counts_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An H100 that does 788 TFLOP/s was measured at 4, because the load of a kernel was counted in."""
    now, done = [0.0], [0]

    def multiply() -> None:
        done[0] += 1
        now[0] += 0.5 if done[0] == 1 else 0.001

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert time_best(multiply, lambda: None) == pytest.approx(0.001 * MATMUL_ROUNDS)


def test_a_device_whose_memory_a_task_has_is_not_sick() -> None:
    def multiply(index: int) -> float:
        raise RuntimeError(
            "CUDA error: out of memory" if index == 0 else "CUDA error: unspecified launch failure"
        )

    full, sick = multiply_each(2, multiply)
    assert (full.error, full.matmul_tflops) == ("", None)
    assert "launch failure" in sick.error


@pytest.mark.parametrize(("flips", "wrong"), [((), 0), ((7,), 1), ((0,), 1)])
def test_a_burn_in_counts_the_products_whose_bits_are_not_those_of_most(
    monkeypatch: pytest.MonkeyPatch, flips: tuple[int, ...], wrong: int
) -> None:
    now = [0.0]

    def multiply() -> bytes:
        now[0] += 1.0
        return b"flipped" if int(now[0]) - 1 in flips else b"right"

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert burn(multiply, 20.0) == (20, wrong)


@pytest.mark.parametrize("idle", [True, False])
async def test_devices_are_burnt_in_only_while_no_task_is_here(tmp_path: Path, idle: bool) -> None:
    asked: list[MeasureOrder] = []

    async def note(order: MeasureOrder, seconds: float) -> list[dict[str, Any]]:
        asked.append(order)
        return []

    from holdfast.agent.health import checks

    order = HealthOrder(number="periodic-1", kind="periodic", burn_seconds=30.0)
    controller = Controller(HealthAnswer(order=order))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "measure", note)
        await run_checks(controller, tmp_path, idle=idle)
    assert [one.burn_seconds for one in asked] == [30.0 if idle else 0.0]


class Controller:
    """Answers with what it is given, then waits for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[HealthRequest] = []
        self.heard = asyncio.Event()

    async def ask(self, request: HealthRequest) -> HealthAnswer:
        self.requests.append(request)
        if not self.answers:
            self.heard.set()
            return HealthAnswer(next_seconds=3600.0)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]  # of an untyped double


async def find_gpus() -> list[Gpu]:
    return [GPU]


async def run_checks(
    controller: Controller, folder: Path, *ends: bool, idle: bool = False
) -> HealthChecks:
    health = HealthChecks(
        controller.ask, find_gpus, incarnation="incarnation", folder=folder, is_idle=lambda: idle
    )
    for number, failed in enumerate(ends):
        health.note_end(f"job-{number}", 1, failed=failed)
    running = asyncio.create_task(health.run())
    await in_time(controller.heard.wait(), 60)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return health


async def test_an_order_is_carried_out_and_reported(tmp_path: Path) -> None:
    order = HealthOrder(number="preflight-1", kind="preflight", disk_mb=1)
    controller = Controller(HealthAnswer(order=order))
    await run_checks(controller, tmp_path)
    first, second = controller.requests
    assert first.report is None
    assert second.report is not None
    assert (second.report.number, second.report.kind) == ("preflight-1", "preflight")
    assert second.report.measured.versions["holdfast"]


async def test_a_host_that_waits_an_hour_asks_again_once_the_settings_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.agent.health import checks

    monkeypatch.setattr(checks, "FAILURE_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(checks, "SETTINGS_SPREAD_SECONDS", 0.0)
    controller = Controller(HealthAnswer(next_seconds=3600.0))
    health = HealthChecks(controller.ask, find_gpus, incarnation="incarnation", folder=tmp_path)
    running = asyncio.create_task(health.run())
    while not controller.requests:
        await asyncio.sleep(0)
    health.look_again()
    await in_time(controller.heard.wait(), 60)
    running.cancel()
    assert len(controller.requests) == 2


async def test_ends_are_told_once_the_controller_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.agent.health import checks

    monkeypatch.setattr(checks, "RETRY_SECONDS", 0.0)
    controller = Controller(Unavailable("away"))
    await run_checks(controller, tmp_path, True, False, True)
    lost, told = controller.requests
    assert (lost.passed, lost.failed) == (told.passed, told.failed) == (1, 2)
    assert told.failures == (("job-0", 1), ("job-2", 1))


async def test_a_failure_while_the_controller_is_asked_is_told_with_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.agent.health import checks

    monkeypatch.setattr(checks, "FAILURE_PAUSE_SECONDS", 0.0)
    controller = Controller(HealthAnswer(next_seconds=3600.0))
    health = HealthChecks(controller.ask, find_gpus, incarnation="incarnation", folder=tmp_path)
    ask = controller.ask

    async def ask_while_a_task_fails(request: HealthRequest) -> HealthAnswer:
        if not controller.requests:
            health.note_end("job-0", 1, failed=True)
        return await ask(request)

    monkeypatch.setattr(health, "_ask", ask_while_a_task_fails)
    running = asyncio.create_task(health.run())
    await in_time(controller.heard.wait(), 60)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [request.failed for request in controller.requests] == [0, 1]
