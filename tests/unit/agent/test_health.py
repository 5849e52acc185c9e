"""The agent's health desk, with the real measuring process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.agent.health.desk import HealthDesk, gather, measure
from holdfast.agent.health.measure import MeasureOrder
from holdfast.core.gpus import Gpu
from holdfast.errors import Unavailable
from holdfast.wire.health import HealthAnswer, HealthOrder, HealthRequest

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
    mark = "sleep 4321.5"
    asked = MeasureOrder(folder=str(tmp_path), script=mark)
    found = gather(asked, await measure(asked, 5.0), [], seconds=5.0)
    assert found.missed == ["script"]
    assert found.cpu_count
    left = [p for p in psutil.process_iter(["cmdline"]) if "4321.5" in (p.info["cmdline"] or ())]
    assert not left, "the script ended with its check"


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


async def run_desk(controller: Controller, folder: Path, *ends: bool) -> HealthDesk:
    desk = HealthDesk(controller.ask, find_gpus, incarnation="incarnation", folder=folder)
    for number, failed in enumerate(ends):
        desk.note_end(f"job-{number}", 1, failed=failed)
    running = asyncio.create_task(desk.run())
    await asyncio.wait_for(controller.heard.wait(), 60)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return desk


async def test_an_order_is_carried_out_and_reported(tmp_path: Path) -> None:
    order = HealthOrder(number="preflight-1", kind="preflight", disk_mb=1)
    controller = Controller(HealthAnswer(order=order))
    await run_desk(controller, tmp_path)
    first, second = controller.requests
    assert first.report is None
    assert second.report is not None
    assert (second.report.number, second.report.kind) == ("preflight-1", "preflight")
    assert second.report.measured.versions["holdfast"]


async def test_ends_are_told_once_the_controller_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.agent.health import desk

    monkeypatch.setattr(desk, "RETRY_SECONDS", 0.0)
    controller = Controller(Unavailable("away"))
    await run_desk(controller, tmp_path, True, False, True)
    lost, told = controller.requests
    assert (lost.passed, lost.failed) == (told.passed, told.failed) == (1, 2)
    assert told.failures == (("job-0", 1), ("job-2", 1))
