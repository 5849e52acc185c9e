"""Many jobs cancelled and retried in one call, over the real wire."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from holdfast.controller.api import jobs
from holdfast.errors import Unavailable
from holdfast.wire.api import MAX_BATCH_JOBS
from tests.unit.controller.conftest import FakeAgent, Served

UNKNOWN = "0" * 20


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take more than one transaction for a few jobs."""
    monkeypatch.setattr(jobs, "PART_JOBS", 2)


def read(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.json()["next"] is None
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def ask(served: Served, verb: str, ids: list[str], **more: Any) -> list[dict[str, Any]]:
    return read(await served.call("POST", f"/v1/jobs/{verb}", "submit", json={"ids": ids, **more}))


async def queue_up(served: Served, count: int) -> list[str]:
    """Jobs that no host is given; their ids."""
    await served.call("POST", "/v1/queues/gpu/pause", json={})
    spec = {"queue": "gpu", "retry": {"max_retries": 3}}
    return [(await served.submit(**spec))["id"] for _ in range(count)]


async def test_each_job_is_answered_for_in_the_order_of_the_ids(
    served: Served, agent: FakeAgent
) -> None:
    running = (await served.submit())["id"]
    order = await agent.take()
    await agent.sync(agent.running(order))
    queued = await queue_up(served, 3)
    ids = [queued[2], "no id", running, UNKNOWN, *queued]
    items = await ask(served, "cancel", ids, reason="enough")
    assert [item["id"] for item in items] == [queued[2], "no id", running, UNKNOWN, *queued[:2]]
    said = {item["id"]: item["job"]["state"] for item in items if item["job"]}
    assert said == {running: "draining", **dict.fromkeys(queued, "cancelled")}
    assert (await served.job(queued[2])).items() >= items[0]["job"].items()
    problems = {item["id"]: item["problem"] for item in items if not item["job"]}
    assert {i: (p["status"], p["code"]) for i, p in problems.items()} == {
        "no id": (404, "not_found"),
        UNKNOWN: (404, "not_found"),
    }
    assert (await served.job(queued[0]))["reason"] == "enough"
    # The host hears of it with its next sync, and the end completes the cancel.
    assert [stop.key for stop in (await agent.sync(agent.running(order))).preempt] == [order.key]
    await agent.end(order, signal=15, stopped=True)
    await served.until(running, "cancelled")


async def test_a_cancel_without_a_reason_names_the_caller(served: Served) -> None:
    (item,) = await ask(served, "cancel", await queue_up(served, 1))
    assert item["job"]["reason"].startswith("cancelled by ")


async def test_many_retries_say_why_some_are_refused(served: Served, agent: FakeAgent) -> None:
    failed = (await served.submit(retry={"max_retries": 1, "retry_delay": 0}))["id"]
    for _ in range(2):
        await agent.end(await agent.take(), exit_code=1)
    await served.until(failed, "failed")
    cancelled, queued = await queue_up(served, 2)
    await ask(served, "cancel", [cancelled])
    ids = [queued, cancelled, UNKNOWN, failed]
    items = {item["id"]: item for item in await ask(served, "retry", ids, counted=True)}
    assert list(items) == ids
    assert items[cancelled]["job"]["state"] == "queued"
    assert items[cancelled]["job"]["reason"].endswith("counted as retry 1 of 3")
    assert {i: p["problem"]["code"] for i, p in items.items() if p["problem"]} == {
        queued: "conflict",
        UNKNOWN: "not_found",
        failed: "retries_spent",
    }
    (item,) = await ask(served, "retry", [failed])
    assert "not counted" in item["job"]["reason"]
    await agent.take()


@pytest.mark.parametrize("verb", ["cancel", "retry"])
async def test_what_is_no_list_of_ids_is_refused(served: Served, verb: str) -> None:
    for ids in ([], [UNKNOWN] * (MAX_BATCH_JOBS + 1), "all", [7]):
        answer = await served.call("POST", f"/v1/jobs/{verb}", json={"ids": ids})
        assert answer.status_code == 422, ids
    assert (await served.call("POST", f"/v1/jobs/{verb}", json={})).status_code == 422
    refused = await served.call("POST", f"/v1/jobs/{verb}", "read", json={"ids": [UNKNOWN]})
    assert refused.status_code == 403


async def test_a_store_that_fails_half_way_leaves_what_was_done(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await queue_up(served, 3)
    cancel, calls = served.store.jobs.cancel_jobs, 0

    async def fail_later(job_ids: Any, *given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise Unavailable("it went away")
        return await cancel(job_ids, *given, **more)

    monkeypatch.setattr(served.store.jobs, "cancel_jobs", fail_later)
    items = await ask(served, "cancel", ids)
    done = [item["id"] for item in items if item["job"]]
    assert done == sorted(ids)[:2]
    (left,) = [item["problem"] for item in items if item["problem"]]
    assert (left["status"], left["code"]) == (503, "unavailable")
    answer = await served.call("POST", "/v1/jobs/cancel", json={"ids": ids})
    assert answer.status_code == 503, "nothing was changed"
    assert msgspec.json.decode(answer.content)["code"] == "unavailable"
