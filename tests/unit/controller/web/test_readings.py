"""The readings of a job's ranks in its page: lines, last values and peaks, also of ended attempts."""

from __future__ import annotations

import re

import msgspec

from holdfast.core.gpus import GpuTelemetry
from holdfast.core.ids import TaskKey
from holdfast.core.readings.usage import RankUsage
from tests.unit.controller.conftest import FakeAgent, Served, gpu
from tests.unit.controller.web.conftest import Browser

MB = 1 << 20


async def read(browser: Browser, job_id: str, more: str = "") -> str:
    page = await browser.send("GET", f"/jobs/{job_id}?tab=readings{more}")
    assert page.status_code == 200
    section: str = page.text.split('id="readings"')[1].split("</section>")[0]
    return section


async def test_each_rank_without_a_gpu_has_its_processors_and_its_memory(
    served: Served, browser: Browser, agent: FakeAgent
) -> None:
    job = await served.submit(tasks=2, memory_bytes=512 * MB, retry={"max_retries": 0})
    order = await agent.take()
    keys = [TaskKey(job["id"], rank, order.key.epoch) for rank in range(2)]
    ranks = [RankUsage(key, 1.5 + key.rank, (100 + key.rank) * MB, 3.25) for key in keys]
    await agent.sync(agent.running(order), ranks=ranks)
    await served.running.controller.telemetry.write()
    live = await read(browser, job["id"])
    assert live.count("<svg") == 4, "no line of a GPU"
    assert "GPU" not in live
    assert re.findall(r"([\d.]+) cores,\s+<[^>]*>peak ([\d.]+)", live) == [
        ("1.50", "3.25"), ("2.50", "3.25")
    ]  # fmt: skip
    assert re.findall(r"(\d+) MiB of (\d+) MiB", live) == [("100", "512"), ("101", "512")]
    assert live.count('class="limit"') == 2
    assert "memory of rank 1, at most 101 MiB" in live, "what a screen reader says"
    one = await read(browser, job["id"], "&rank=1")
    assert one.count("<svg") == 2

    for key in keys:
        await agent.end(msgspec.structs.replace(order, key=key), exit_code=3)
    ended = await read(browser, job["id"])
    assert "of attempt 1" in ended
    assert ended.count("cores,") == 2, "those of an ended attempt stay"
    assert "cores," not in await read(browser, job["id"], "&attempt=2")


async def test_an_ended_attempt_keeps_the_lines_of_its_gpus(
    served: Served, browser: Browser
) -> None:
    box = FakeAgent(served, "box", gpus=[gpu(0), gpu(1)])
    await box.register()
    job = await served.submit(gpus=1)
    order = await box.take()
    (held,) = order.gpus
    told = [
        GpuTelemetry(index=n, utilisation_percent=60.0 + n, memory_total_bytes=MB) for n in (0, 1)
    ]
    await box.sync(box.running(order), gpus=told, ranks=[RankUsage(order.key, 0.5, MB)])
    await served.running.controller.telemetry.write()
    live = await read(browser, job["id"])
    assert f"GPU {held}" in live
    assert f"{60 + held} %" in live
    await box.end(order, exit_code=0)
    assert (await served.until(job["id"], "succeeded"))["state"] == "succeeded"
    ended = await read(browser, job["id"])
    assert re.findall(r"GPU (\d)</span>", ended) == [str(held)]
    assert f"{60 + held} %" in ended
