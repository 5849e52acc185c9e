"""Schedules over the real wire: made, told, run, and dispatched by the leader's loop."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.client import AsyncClient
from holdfast.controller.loops.schedules import SchedulesLoop
from tests.unit.controller.conftest import SECRETS, FakeAgent, Served
from tests.waits import within


async def _put(served: Served, name: str = "nightly", **fields: Any) -> dict[str, Any]:
    body = {"job": {"argv": ["x"]}, **fields}
    if "cron" not in body:
        body.setdefault("every_seconds", 1.0)
    answer = await served.call("PUT", f"/v1/schedules/{name}", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def _runs(served: Served, count: int, name: str = "nightly") -> list[dict[str, Any]]:
    async with within(20):
        while True:
            items = (await served.call("GET", f"/v1/schedules/{name}/runs")).json()["items"]
            if len(items) >= count:
                return list(items)
            await asyncio.sleep(0.05)


async def test_a_schedule_runs_and_skips_while_its_job_goes_on(
    served: Served, agent: FakeAgent
) -> None:
    await _put(served, job={"argv": ["x"], "secrets": {"TOKEN": "hush"}})
    order = await agent.take()
    assert order.env["HOLDFAST_SCHEDULE"] == "nightly"
    assert order.secrets == {"TOKEN": "hush"}
    runs = await _runs(served, 2)
    assert [run["outcome"] for run in runs[-2:]] == ["skipped", "submitted"]
    assert runs[-1]["job_id"] == order.key.job_id
    assert (
        order.env["HOLDFAST_SCHEDULED_FOR"]
        == datetime.fromisoformat(runs[-1]["due_at"]).isoformat()
    )
    shown = (await served.call("GET", "/v1/schedules/nightly")).json()
    assert (shown["last_state"], "hush" in str(shown)) == ("reserved", False)
    await agent.end(order, exit_code=0)
    assert (await agent.take()).key.job_id != order.key.job_id


async def test_a_queue_of_runs_goes_one_after_the_other(served: Served, agent: FakeAgent) -> None:
    await _put(served, overlap="queue")
    await _runs(served, 2)
    jobs = (await served.call("GET", "/v1/jobs")).json()["items"]
    second, first = jobs[-2:]
    assert second["spec"]["after"] == [f"{first['id']}:any"]
    assert second["state"] == "waiting"


async def test_a_job_that_cannot_be_submitted_is_told_and_holds_up_no_other(
    served: Served, agent: FakeAgent
) -> None:
    assert (await served.call("PUT", "/v1/queues/soon-gone", json={"set": {}})).status_code == 200
    await _put(served, "broken", job={"argv": ["x"], "queue": "soon-gone"})
    await _put(served, "sound")
    await served.call("POST", "/v1/schedules/broken/pause")
    await served.call("DELETE", "/v1/queues/soon-gone")
    await served.call("POST", "/v1/schedules/broken/resume")
    (run, *_) = await _runs(served, 1, "broken")
    assert (run["outcome"], run["job_id"]) == ("refused", None)
    assert "soon-gone" in run["reason"]
    assert (await _runs(served, 1, "sound"))[0]["outcome"] in ("submitted", "skipped")
    kinds = (await served.call("GET", "/v1/events?kind=schedule.refused")).json()["items"]
    assert kinds[0]["data"]["schedule"] == "broken"


async def test_a_pause_a_run_by_hand_and_the_times_to_come(served: Served) -> None:
    async with AsyncClient(served.url, SECRETS["submit"]) as client:
        made = await client.put_schedule(
            "weekly", argv=["x"], cron="0 3 * * 1", time_zone="Europe/Berlin"
        )
        assert made.spec.cron == "0 3 * * 1"
        told = await client.schedule_times("weekly", 3)
        assert (len(told.times), told.time_zone) == (3, "Europe/Berlin")
        assert made.next_at == told.times[0]
        job = await client.run_schedule("weekly")
        assert job.name == "weekly"
        paused = await client.pause_schedule("weekly", "holidays")
        assert paused.paused_reason == "holidays"
        assert (await client.resume_schedule("weekly")).paused_at is None
        assert [s.name for s in await client.schedules()] == ["weekly"]
        (run,) = await client.schedule_runs("weekly")
        assert run.job_id == job.id
        await client.delete_schedule("weekly")
        assert await client.schedules() == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "0 0 * * *", "time_zone": "Mars/Base"}, "no time zone"),
        ({}, "either `cron`"),
        ({"every_seconds": 0.5}, "every_seconds"),
        ({"every_seconds": 60, "job": {"argv": []}}, "job."),
        ({"every_seconds": 60, "job": {"argv": ["x"], "start_at": 5}}, "by itself"),
    ],
)
async def test_what_cannot_be_is_refused(served: Served, body: dict[str, Any], said: str) -> None:
    given = {"job": {"argv": ["x"]}, **body}
    answer = await served.call("PUT", "/v1/schedules/s", json=given)
    assert answer.status_code == 422, answer.text
    assert said in answer.text


async def test_two_leaders_make_one_run_of_each_time(served: Served) -> None:
    """TIME-1, with a second loop over the same store beside the leader's own."""
    await _put(served, overlap="queue")
    loops = [SchedulesLoop(served.controller) for _ in range(3)]
    until = datetime.now(UTC) + timedelta(seconds=3.5)
    while datetime.now(UTC) < until:
        await asyncio.gather(*(loop.run_once() for loop in loops))
    runs = (await served.call("GET", "/v1/schedules/nightly/runs")).json()["items"]
    times = [run["due_at"] for run in runs]
    assert len(times) == len(set(times)) >= 2
    jobs = (await served.call("GET", "/v1/jobs")).json()["items"]
    keys = [job["spec"]["idempotency_key"] for job in jobs]
    assert len(keys) == len(set(keys)) == len([r for r in runs if r["outcome"] == "submitted"])
