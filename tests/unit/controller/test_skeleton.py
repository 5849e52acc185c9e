"""One job's whole way through the server, over the real wire."""

from __future__ import annotations

import asyncio

from tests.unit.controller.conftest import FakeAgent, Served
from tests.waits import within


async def test_a_job_from_submit_to_success(served: Served, agent: FakeAgent) -> None:
    job = await served.submit(argv=["echo", "hello"], name="first")
    assert job["state"] == "queued"
    order = await agent.take()
    assert (order.key.job_id, order.argv, order.attempt, order.queue) == (
        job["id"],
        ["echo", "hello"],
        1,
        "cpu",
    )
    assert order.watch.time_limit_seconds is None
    answer = await agent.sync(agent.running(order))
    assert [r.key for r in answer.renewed] == [order.key]
    assert (await served.job(job["id"]))["state"] == "running"

    assert (await agent.send_log(order.key, b"hello\n", ended=True)).status_code == 200

    answer = await agent.end(order, exit_code=0)
    assert answer.acked == [order.key]
    found = await served.until(job["id"], "succeeded")
    assert found["exit_code"] == 0
    attempts = (await served.call("GET", f"/v1/jobs/{job['id']}/attempts")).json()["items"]
    assert [(a["number"], a["outcome"], a["host"]) for a in attempts] == [(1, "succeeded", "h1")]
    logs = await served.call("GET", f"/v1/jobs/{job['id']}/logs", params={"stream": "stdout"})
    assert (logs.content, logs.headers["holdfast-log-size"]) == (b"hello\n", "6")


async def test_a_failed_task_is_decided_by_the_completer(served: Served, agent: FakeAgent) -> None:
    job = await served.submit(argv=["false"])
    order = await agent.take()
    await agent.sync(agent.running(order))
    await agent.end(order, exit_code=3)
    found = await served.until(job["id"], "failed")
    assert (found["cause"], found["exit_code"]) == ("nonzero_exit", 3)
    assert "exit code 3" in found["reason"]


async def test_a_waiting_poll_gets_a_launch_when_it_comes(served: Served, agent: FakeAgent) -> None:
    change = {"set": {"sync_interval_seconds": 30}}
    assert (await served.call("PATCH", "/v1/config", json=change)).status_code == 200
    poll = asyncio.create_task(agent.sync(wait=30.0))
    async with within(
        5
    ):  # let it wait, because the test is about the wake and not about the first read
        while not served.controller.wakes.waiting_polls:
            await asyncio.sleep(0.005)
    assert not poll.done()
    await served.submit()
    async with within(5):
        assert (await poll).launch
