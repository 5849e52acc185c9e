"""The processors and the memory of a job's ranks, from a sync to the answer of the API."""

from __future__ import annotations

import pytest

from holdfast.core.ids import TaskKey
from holdfast.core.readings.points import MAX_POINTS, Step, choose_point_seconds
from holdfast.core.readings.usage import RankUsage
from tests.unit.controller.conftest import FakeAgent, Served

MB = 1 << 20


async def test_what_a_host_reads_of_its_ranks_is_in_the_answer(
    served: Served, agent: FakeAgent
) -> None:
    job = await served.submit(tasks=2, memory_bytes=512 * MB)
    order = await agent.take()
    keys = [TaskKey(job["id"], rank, order.key.epoch) for rank in range(2)]
    ranks = [RankUsage(key, 1.5 + key.rank, 100 * MB) for key in keys]
    stranger = RankUsage(TaskKey("another", 0, 1), 9.0, MB)
    await agent.sync(agent.running(order), ranks=[*ranks, stranger])
    await served.running.controller.telemetry.write()
    path = f"/v1/jobs/{job['id']}/telemetry"
    found = (await served.call("GET", path, "read")).json()
    assert (found["step"], found["point_seconds"], found["tasks"]) == ("minute", 60, 2)
    assert found["memory_limit_bytes"] == 512 * MB
    points = [(p["rank"], p["attempt"], p["cores"], p["memory_max_bytes"]) for p in found["points"]]
    assert points == [(0, 1, 1.5, 100 * MB), (1, 1, 2.5, 100 * MB)]
    one = (await served.call("GET", f"{path}?rank=1&rank=7&step=hour", "read")).json()
    assert [(p["rank"], one["step"]) for p in one["points"]] == [(1, "hour")]
    assert (await served.call("GET", f"{path}?attempt=2", "read")).json()["points"] == []
    many = "&".join(f"rank={n}" for n in range(65))
    assert (await served.call("GET", f"{path}?{many}", "read")).status_code == 422
    assert (await served.call("GET", "/v1/jobs/none/telemetry", "read")).status_code == 404


async def test_a_reading_that_cannot_be_read_holds_up_no_other(
    served: Served, agent: FakeAgent
) -> None:
    """REPORT-1."""
    job = await served.submit()
    order = await agent.take()
    good = RankUsage(order.key, 0.5, MB)
    answer = await agent.sync(
        agent.running(order), ranks=[RankUsage(order.key, -1.0, MB), good, good]
    )
    assert len(answer.unread) == 2
    await served.running.controller.telemetry.write()
    found = (await served.call("GET", f"/v1/jobs/{job['id']}/telemetry", "read")).json()
    assert [(p["cores"], p["samples"]) for p in found["points"]] == [(0.5, 1)]


@pytest.mark.parametrize(
    ("step", "seconds", "ranks", "length"),
    [("minute", 3600, 64, 60), ("minute", 86_400, 1, 60), ("minute", 86_400, 64, 360),
     ("hour", 90 * 86_400, 64, 9 * 3600), ("hour", 90 * 86_400, 1, 3600)],
)  # fmt: skip
def test_an_answer_has_as_many_points_as_a_page_can_draw(
    step: Step, seconds: int, ranks: int, length: int
) -> None:
    assert choose_point_seconds(step, seconds, ranks) == length
    assert seconds / length * ranks <= MAX_POINTS
