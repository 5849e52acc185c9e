"""`--after` over the real wire: a dependant goes on, or not, as its parents ended."""

from __future__ import annotations

from typing import Any

from tests.unit.controller.conftest import FakeAgent, Served


async def _why(served: Served, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await served.call("GET", f"/v1/jobs/{job_id}/why")).json()
    return found


async def test_a_dependant_starts_when_its_parent_is_done(served: Served, agent: FakeAgent) -> None:
    parent = await served.submit(name="prepare")
    child = await served.submit(after=[parent["id"]])
    assert child["state"] == "waiting"
    assert child["reason"] == f"waits for job {parent['id']} (prepare) to succeed"
    order = await agent.take()
    assert order.key.job_id == parent["id"]
    await agent.sync(agent.running(order))
    why = await _why(served, child["id"])
    assert why["lines"][0]["code"] == "dependency"
    assert why["summary"] == (
        f"it waits for job {parent['id']} (prepare) to succeed; that one is running"
    )
    assert why["lines"][0]["hint"] == f"holdfast why {parent['id']}"
    await agent.end(order, exit_code=0)
    assert (await agent.take()).key.job_id == child["id"]


async def test_a_failed_parent_cancels_the_whole_chain(served: Served, agent: FakeAgent) -> None:
    parent = await served.submit(name="prepare")
    child = await served.submit(after=[f"{parent['id']}:ok"])
    grandchild = await served.submit(after=[child["id"]])
    cleaner = await served.submit(after=[f"{parent['id']}:failed"])
    order = await agent.take()
    await agent.end(order, exit_code=3)
    job = await served.until(child["id"], "cancelled")
    assert (job["cause"], job["reason"]) == (
        "dependency",
        f"job {parent['id']} (prepare) failed, and this job waited for it to succeed",
    )
    job = await served.until(grandchild["id"], "cancelled")
    assert job["reason"].startswith(f"job {child['id']} (true) was cancelled")
    assert (await agent.take()).key.job_id == cleaner["id"]


async def test_bad_words_are_refused_with_what_to_do(served: Served) -> None:
    for after, said in (
        (["06ch2v8wq1m4kz7d9x3t"], "there is no job 06ch2v8wq1m4kz7d9x3t"),
        (["x:maybe"], "after"),
        (["a", "a:any"], "named twice"),
    ):
        answer = await served.call("POST", "/v1/jobs", json={"argv": ["x"], "after": after})
        assert answer.status_code == 422, answer.text
        assert said in answer.text
