"""A queued job's place in line, its expected start, and what would let it start now, over a real controller."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.controller.why.outlook import find_failing
from holdfast.core.fleet.snapshot import SpawnOutcome
from tests.unit.controller.conftest import FakeAgent, Served, gpu

GPUS = [gpu(n) for n in range(4)]


async def ask(served: Served, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await served.call("GET", f"/v1/jobs/{job_id}/why")).json()
    return found


async def test_a_queued_job_is_told_its_place_its_start_and_what_would_let_it_start_now(
    served: Served,
) -> None:
    agent = FakeAgent(served, gpus=GPUS)
    await agent.register()
    first = await served.submit(gpus=3, time_limit_seconds=600)
    order = await agent.take()
    await agent.sync(agent.running(order))
    await served.until(first["id"], "running")

    next_one = await served.submit(gpus=2, time_limit_seconds=600)
    behind = await served.submit(gpus=4, time_limit_seconds=600)

    why = await ask(served, next_one["id"])
    assert why["forecast"]["ahead"] == 0
    assert [each["message"] for each in why["would_start"]] == ["with 1 GPU in place of 2"]
    lines = {line["code"]: line["message"] for line in why["lines"]}
    assert lines["would_start"] == "it would start now with 1 GPU in place of 2"
    assert lines["forecast"].startswith("it should start in about")

    last = await ask(served, behind["id"])
    assert last["forecast"]["ahead"] == 1
    now = datetime.now(UTC)
    starts = [datetime.fromisoformat(each["forecast"]["expected_start"]) for each in (why, last)]
    assert now < starts[0] < now + timedelta(seconds=601)
    assert starts[0] < starts[1] < now + timedelta(seconds=1202)

    listed = (await served.call("GET", "/v1/forecasts")).json()["items"]
    assert [each["job_id"] for each in listed] == [next_one["id"], behind["id"]]

    changed = await served.submit(gpus=1, time_limit_seconds=600)  # as the hint says
    await served.until(changed["id"], "reserved", "running")


async def test_a_job_that_no_host_will_ever_fit_is_foretold_no_start(served: Served) -> None:
    agent = FakeAgent(served, gpus=GPUS)
    await agent.register()
    job = await served.submit(gpus=1, host_labels={"zone": "moon"})
    why = await ask(served, job["id"])
    assert why["forecast"]["expected_start"] is None
    assert [each["hint"] for each in why["would_start"]] == ["leave --host-label zone=moon away"]


async def test_a_job_that_runs_is_foretold_nothing(served: Served) -> None:
    agent = FakeAgent(served)
    await agent.register()
    job = await served.submit()
    await agent.take()
    assert (await ask(served, job["id"]))["forecast"] is None


async def test_a_job_with_a_start_time_is_foretold_a_start_after_it(served: Served) -> None:
    agent = FakeAgent(served, gpus=GPUS)
    await agent.register()
    at = datetime.now(UTC) + timedelta(hours=1)
    job = await served.submit(gpus=1, start_at=at.timestamp())
    why = await ask(served, job["id"])
    assert why["state"] == "waiting"
    expected = datetime.fromisoformat(why["forecast"]["expected_start"])
    assert abs((expected - at).total_seconds()) < 60
    earliest = datetime.fromisoformat(why["forecast"]["earliest_start"])
    assert (earliest - at).total_seconds() > -1, "nothing starts before its time"


@pytest.mark.parametrize(
    ("faults", "failing"),
    [("", 0.0), ("x.", 0.5), (".x", 0.5), ("xx.", 1.0), ("x.x.", 0.5), ("xxxx", 1.0)],
)
def test_a_pool_whose_last_spawns_all_failed_brings_no_host(faults: str, failing: float) -> None:
    """The newest stands first: "x" failed."""
    outcomes = [
        SpawnOutcome(age_seconds=60.0 * n, offer="a", fault="" if word == "." else "error")
        for n, word in enumerate(faults)
    ]
    assert find_failing(outcomes[::-1]) == failing
