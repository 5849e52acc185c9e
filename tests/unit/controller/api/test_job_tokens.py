"""JOB-TOKEN-1…3: what a running job may do with its own token."""

from __future__ import annotations

import hashlib
from typing import Any

import httpx
import pytest

from holdfast.core.ids import TaskKey
from holdfast.wire.agent import LaunchOrder, TaskReport
from holdfast.wire.bearer import make_job_token, read_job_token
from tests.unit.controller.conftest import FakeAgent, Served, bearer

TRUE = {"argv": ["/bin/true"]}


class Inside:
    """Calls from within a running job."""

    def __init__(self, served: Served, agent: FakeAgent, order: LaunchOrder) -> None:
        self.served, self.order = served, order
        self.token = make_job_token(hashlib.sha256(agent.key.encode()).digest(), order.key)

    async def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return await self.served.http.request(method, path, headers=bearer(self.token), json=body)

    async def submit(self, **fields: Any) -> str:
        answer = await self.ask("POST", "/v1/jobs", TRUE | fields)
        assert answer.status_code == 201, answer.text
        found: str = answer.json()["id"]
        return found


@pytest.fixture
async def agent(served: Served) -> FakeAgent:
    made = FakeAgent(served, cpu_slots=16)
    assert (await made.register()).status_code == 200
    return made


async def begin(served: Served, agent: FakeAgent, **fields: Any) -> Inside:
    """Submit a job as its user, and have it run."""
    answer = await served.call("POST", "/v1/jobs", json=TRUE | fields)
    assert answer.status_code == 201, answer.text
    return await go_in(served, agent)


async def go_in(served: Served, agent: FakeAgent) -> Inside:
    order = await agent.take()
    await agent.sync(agent.running(order))
    return Inside(served, agent, order)


async def test_a_job_reads_and_cancels_what_it_submitted_and_nothing_else(
    served: Served, agent: FakeAgent
) -> None:
    inside = await begin(served, agent)
    child = await inside.submit(start_at=4e9)
    other = (await served.call("POST", "/v1/jobs", json=TRUE | {"start_at": 4e9})).json()["id"]
    found = (await inside.ask("GET", f"/v1/jobs/{child}")).json()
    assert (found["owner"], found["spec"]["parent"]) == ("tester", inside.order.key.job_id)
    listed = (await inside.ask("GET", "/v1/jobs")).json()["items"]
    assert [job["id"] for job in listed] == [child]
    for method, path in (
        ("GET", f"/v1/jobs/{other}"),
        ("POST", f"/v1/jobs/{other}/cancel"),
        ("POST", f"/v1/jobs/{child}/retry"),
        ("GET", "/v1/hosts"),
        ("GET", "/v1/tokens"),
        ("PUT", "/v1/schedules/nightly"),
    ):
        assert (await inside.ask(method, path, {})).status_code == 403, path
    assert (await inside.ask("POST", f"/v1/jobs/{child}/cancel", {})).json()["state"] == "cancelled"
    made = await inside.ask("POST", "/v1/arrays", {"job": TRUE | {"start_at": 4e9}, "array": "0-2"})
    assert made.status_code == 201, made.text
    assert (await inside.ask("GET", f"/v1/arrays/{made.json()['id']}")).status_code == 200


async def test_a_token_ends_with_its_attempt(served: Served, agent: FakeAgent) -> None:
    inside = await begin(served, agent)
    assert (await inside.ask("GET", "/v1/jobs")).status_code == 200
    key = inside.order.key
    forged = inside.token[:-1] + ("A" if inside.token[-1] != "A" else "B")
    for token in (forged, inside.token.replace(".0.1.", ".1.1."), inside.token + "~" + key.job_id):
        inside.token, good = token, inside.token
        answer = await inside.ask("GET", "/v1/jobs")
        assert answer.status_code == (200 if "~" in token else 401)
        inside.token = good
    await agent.end(inside.order, exit_code=0)
    answer = await inside.ask("GET", "/v1/jobs")
    assert (answer.status_code, "is over" in answer.json()["detail"]) == (401, True)


async def test_a_job_submits_in_its_own_project_alone(served: Served, agent: FakeAgent) -> None:
    for project in ("vision", "speech"):
        await served.call("PUT", f"/v1/projects/{project}", json={"set": {}})
    inside = await begin(served, agent, project="vision")
    child = await inside.submit(start_at=4e9)
    assert (await inside.ask("GET", f"/v1/jobs/{child}")).json()["project"] == "vision"
    refused = await inside.ask("POST", "/v1/jobs", TRUE | {"project": "speech"})
    assert refused.status_code == 403
    node = {"name": "a", "job": {"spec": TRUE | {"project": "speech"}}}
    flow = {"id": "06ch2v8wq1m4kz7d9x3t", "spec": {"name": "w", "nodes": [node]}}
    assert (await inside.ask("POST", "/v1/workflows", flow)).status_code == 403
    node["job"] = {"spec": TRUE}
    made = await inside.ask("POST", "/v1/workflows", flow)
    assert (made.status_code, made.json().get("project")) == (201, "vision"), made.text
    assert (await inside.ask("GET", "/v1/workflows/06ch2v8wq1m4kz7d9x3t")).status_code == 200
    parent = await served.call("POST", "/v1/jobs", json=TRUE | {"parent": inside.order.key.job_id})
    assert parent.status_code == 422


async def test_a_project_bounds_what_its_jobs_submit(served: Served, agent: FakeAgent) -> None:
    inside = await begin(served, agent)
    await served.call("PUT", "/v1/projects/default", json={"set": {"job_children": 1}})
    await inside.submit(start_at=4e9)
    refused = await inside.ask("POST", "/v1/jobs", TRUE)
    assert (refused.status_code, refused.json()["code"]) == (403, "too_many_children")
    await served.call("PUT", "/v1/projects/default", json={"set": {"job_tokens": False}})
    refused = await inside.ask("GET", "/v1/jobs")
    assert (refused.status_code, refused.json()["code"]) == (403, "no_job_tokens")


async def test_jobs_submit_jobs_four_deep_and_no_deeper(served: Served, agent: FakeAgent) -> None:
    inside = await begin(served, agent)
    for _ in range(4):
        await inside.submit()
        inside = await go_in(served, agent)
    refused = await inside.ask("POST", "/v1/jobs", TRUE)
    assert (refused.status_code, refused.json()["code"]) == (403, "too_deep")


async def test_jobs_are_cancelled_with_their_parent_unless_they_are_detached(
    served: Served, agent: FakeAgent
) -> None:
    inside = await begin(served, agent)
    child, kept = (
        await inside.submit(start_at=4e9),
        await inside.submit(start_at=4e9, detached=True),
    )
    parent = inside.order.key.job_id
    await served.call("POST", f"/v1/jobs/{parent}/cancel", json={})
    await agent.sync(TaskReport(key=inside.order.key, state="ended"))
    job = await served.until(child, "cancelled")
    assert job["reason"] == f"its parent, job {parent}, was cancelled"
    assert (await served.job(kept))["state"] == "waiting"


def test_only_the_token_of_a_job_is_read_as_one() -> None:
    key = TaskKey("06ch2v8wq1m4kz7d9x3t", 3, 12)
    found = read_job_token(make_job_token(b"hash", key))
    assert found is not None
    assert (found[0], found[2]) == (key, "")
    assert read_job_token("hft_" + "x" * 43) is None
