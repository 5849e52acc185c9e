"""Projects and their quotas over the real wire."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.controller.conftest import FakeAgent, Served, gpu
from tests.waits import within


async def put(served: Served, name: str, **settings: Any) -> dict[str, Any]:
    answer = await served.call(
        "PUT", f"/v1/projects/{name.replace('/', '%2F')}", json={"set": settings}
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def lines_of(served: Served, job_id: str) -> dict[str, dict[str, str]]:
    why = (await served.call("GET", f"/v1/jobs/{job_id}/why")).json()
    return {line["code"]: line for line in why["lines"]}


async def test_a_project_is_made_changed_and_forgotten(served: Served) -> None:
    unnamed = (await served.call("GET", "/v1/projects/nobody", "read")).json()
    assert (unnamed["settings"], unnamed["unfinished"]) == ({}, 0)
    made = await put(
        served, "team/vision", quota_jobs=2, max_retries="3", retry_delay_seconds="30s"
    )
    assert made["settings"] == {"quota_jobs": 2, "max_retries": 3, "retry_delay_seconds": 30.0}
    changed = await served.call(
        "PUT",
        "/v1/projects/team%2Fvision",
        json={"set": {"quota_gpus": 8}, "unset": ["max_retries"]},
    )
    assert changed.json()["settings"] == {
        "quota_jobs": 2,
        "retry_delay_seconds": 30.0,
        "quota_gpus": 8,
    }
    job = await served.submit(project="team/vision")
    await served.submit(project="other")
    listed = {
        p["name"]: p for p in (await served.call("GET", "/v1/projects", "read")).json()["items"]
    }
    assert (listed["team/vision"]["unfinished"], listed["other"]["unfinished"]) == (1, 1)
    config = (
        await served.call("GET", "/v1/config", params={"project": "team/vision", "queue": "gpu"})
    ).json()["items"]
    found = {e["name"]: (e["value"], e["source"]) for e in config}
    assert found["retry_delay_seconds"] == (30.0, "project")
    assert found["time_limit_seconds"] == (None, "default")
    refused = await served.call("DELETE", "/v1/projects/team%2Fvision")
    assert refused.status_code == 409
    await served.call("POST", f"/v1/jobs/{job['id']}/cancel")
    assert (await served.call("DELETE", "/v1/projects/team%2Fvision")).status_code == 204
    assert (await served.call("DELETE", "/v1/projects/team%2Fvision")).status_code == 404
    kinds = [
        e["kind"]
        for e in (await served.call("GET", "/v1/events", params={"kind": "project.*"})).json()[
            "items"
        ]
    ]
    assert kinds[:2] == ["project.changed", "project.changed"]


async def test_bad_names_and_patches(served: Served) -> None:
    for path in ("/v1/projects/%20x", "/v1/projects/%00", "/v1/projects/-a"):
        answer = await served.call("PUT", path, json={"set": {}})
        assert (answer.status_code, answer.json()["field"]) == (422, "name")
        assert (await served.call("GET", path)).status_code == 404
        assert (await served.call("DELETE", path)).status_code == 404
    both = await served.call(
        "PUT", "/v1/projects/p", json={"set": {"quota_jobs": 1}, "unset": ["quota_jobs"]}
    )
    assert "both in set and in unset" in both.json()["detail"]
    unknown = await served.call("PUT", "/v1/projects/p", json={"unset": ["quotas"]})
    assert (unknown.status_code, unknown.json()["field"]) == (422, "unset.quotas")


async def test_a_soft_quota_makes_jobs_wait_and_says_so(served: Served, agent: FakeAgent) -> None:
    await put(served, "vision", quota_jobs=1)
    first, second = await served.submit(project="vision"), await served.submit(project="vision")
    other = await served.submit(project="audio")
    orders = []
    for _ in range(2):
        orders.append(await agent.take())
        await agent.sync(*(agent.running(order) for order in orders))
    assert {o.key.job_id for o in orders} == {first["id"], other["id"]}
    line = (await lines_of(served, second["id"]))["quota"]
    assert line["message"] == "project vision runs 1 job, and may run 1 at once"
    assert "holdfast projects set vision quota_jobs=N" in line["hint"]
    assert (await served.call("GET", "/v1/projects/vision")).json()["running"] == 1
    mine = next(o for o in orders if o.key.job_id == first["id"])
    await agent.end(mine, exit_code=0)
    assert (await agent.take()).key.job_id == second["id"]


async def test_a_raised_quota_starts_what_waits(served: Served, agent: FakeAgent) -> None:
    await put(served, "vision", quota_jobs=0)
    job = await served.submit(project="vision")
    assert "quota" in await lines_of(served, job["id"])
    await put(served, "vision", quota_jobs=1)
    assert (await agent.take()).key.job_id == job["id"]


async def test_a_gpu_quota_says_how_many_are_left(served: Served) -> None:
    box = FakeAgent(served, "g1", gpus=[gpu(n) for n in range(4)])
    await box.register()
    await put(served, "vision", quota_gpus=3)
    await served.submit(project="vision", gpus=2)
    order = await box.take()
    await box.sync(box.running(order))
    second = await served.submit(project="vision", gpus=2)
    async with within(10):
        while (await served.job(second["id"]))["state"] != "queued":
            await asyncio.sleep(0.02)
    line = (await lines_of(served, second["id"]))["quota"]
    assert (
        line["message"]
        == "project vision holds 2 GPUs and may hold 3 at once, and this job needs 2"
    )


async def test_a_retried_attempt_counts_like_any_other(served: Served, agent: FakeAgent) -> None:
    """QUOTA-2: the second job takes the place that the first one's failure freed; the retry waits
    its turn."""
    await put(served, "vision", quota_jobs=1)
    first = await served.submit(project="vision", retry={"max_retries": 1, "retry_delay": 0.5})
    second = await served.submit(project="vision")
    await agent.end(await agent.take(), exit_code=1)
    order = await agent.take()
    assert order.key.job_id == second["id"]
    await agent.sync(agent.running(order))
    await served.until(first["id"], "queued")
    assert "quota" in await lines_of(served, first["id"])
    await agent.end(order, exit_code=0)
    again = await agent.take()
    assert again.key.job_id == first["id"]
    await agent.end(again, exit_code=0)
    assert (await served.until(first["id"], "succeeded"))["attempts"] == 2


async def test_a_hard_quota_refuses_at_submission(served: Served) -> None:
    await put(served, "vision", quota_jobs=2, quota="hard")
    await served.submit(project="vision")
    batch = await served.call(
        "POST", "/v1/jobs/batch", json={"jobs": [{"argv": ["x"], "project": "vision"}] * 2}
    )
    assert (batch.status_code, batch.json()["code"]) == (403, "quota_exceeded")
    await served.submit(project="vision")
    refused = await served.call("POST", "/v1/jobs", json={"argv": ["x"], "project": "vision"})
    assert (refused.status_code, refused.json()["code"]) == (403, "quota_exceeded")
    assert refused.headers["content-type"] == "application/problem+json"
    assert "quota_jobs" in refused.json()["detail"]
    await served.submit(project="other")
    assert (
        len((await served.call("GET", "/v1/jobs", params={"project": "vision"})).json()["items"])
        == 2
    )


async def test_what_could_never_start_is_refused_by_a_soft_quota_too(served: Served) -> None:
    await put(served, "vision", quota_gpus=2)
    refused = await served.call(
        "POST", "/v1/jobs", json={"argv": ["x"], "project": "vision", "gpus": 4}
    )
    assert (refused.status_code, refused.json()["code"]) == (403, "quota_exceeded")
    assert "can never start" in refused.json()["detail"]


async def test_a_budget_of_nothing_holds_at_once_and_why_says_so(served: Served) -> None:
    """QUOTA-3: the leader judges a changed budget without waiting for its minute."""
    await put(served, "vision", budget_usd_per_month=0, at_budget="hold")
    async with within(10):
        while not (await served.call("GET", "/v1/projects/vision", "read")).json()["held"]:
            await asyncio.sleep(0.02)
    job = await served.submit(project="vision")
    lines = await lines_of(served, job["id"])
    assert lines["budget"]["message"].startswith(
        "project vision has a budget of $0.00, which is spent at once"
    )
    await put(served, "vision", at_budget="notice")
    async with within(10):
        while "budget" in await lines_of(served, job["id"]):
            await asyncio.sleep(0.02)


async def test_projects_are_listed_without_a_count_of_the_jobs_that_wait(served: Served) -> None:
    await served.call("PUT", "/v1/projects/vision", json={"set": {}, "unset": []})
    await served.submit(queue="cpu", project="vision")
    await served.call("DELETE", "/v1/projects/vision")
    for query, unfinished in (("", 1), ("?waiting=0", 0)):
        items = (await served.call("GET", f"/v1/projects{query}")).json()["items"]
        assert {each["name"]: each["unfinished"] for each in items}["vision"] == unfinished
