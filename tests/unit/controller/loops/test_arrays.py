"""Arrays over the real wire: one submission, one line of state, members that can be named."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.client import AsyncClient
from tests.unit.controller.conftest import SECRETS, FakeAgent, Served


async def _submit(served: Served, **fields: Any) -> dict[str, Any]:
    job = {"argv": ["x"], "name": "fit", **fields.pop("job", {})}
    answer = await served.call("POST", "/v1/arrays", json={"job": job, **fields})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def _until(served: Served, array_id: str, **counts: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(500):
        found = (await served.call("GET", f"/v1/arrays/{array_id}")).json()
        if found["counts"] == counts:
            return found
        await served.call("GET", "/v1/events?tail=0")
    raise AssertionError(found)


async def test_an_array_runs_so_many_at_once_until_all_are_done(
    served: Served, agent: FakeAgent
) -> None:
    array = await _submit(served, array="3-6%2")
    assert (array["indices"], array["size"], array["at_once"]) == ("3-6", 4, 2)
    seen = []
    for done in range(4):
        order = await agent.take()
        assert order.env["HOLDFAST_ARRAY_ID"] == array["id"]
        assert order.env["HOLDFAST_ARRAY_SIZE"] == "4"
        seen.append(order.env["HOLDFAST_ARRAY_INDEX"])
        now = (await served.call("GET", f"/v1/arrays/{array['id']}")).json()
        assert now["active"] <= 2
        assert now["counts"].get("succeeded", 0) == done
        await agent.end(order, exit_code=0)
    assert seen == ["3", "4", "5", "6"]
    whole = (await served.call("GET", f"/v1/arrays/{array['id']}")).json()
    assert (whole["state"], whole["reason"]) == ("succeeded", "4 of 4 have ended")


async def test_a_member_is_named_by_its_index(served: Served, agent: FakeAgent) -> None:
    array = await _submit(served, array="0-9%1")
    named = f"{array['id']}[7]"
    member = (await served.call("GET", f"/v1/jobs/{named}")).json()
    assert (member["array_index"], member["name"]) == (7, "fit[7]")
    why = (await served.call("GET", f"/v1/jobs/{named}/why")).json()
    assert why["lines"][0]["code"] == "array"
    assert why["summary"] == "it waits for its turn: array fit runs 1 of its 1 at once"
    async with AsyncClient(served.url, SECRETS["submit"]) as client:
        cancelled = await client.cancel(named)
        assert (cancelled.id, cancelled.state) == (member["id"], "cancelled")
    missing = await served.call("GET", f"/v1/jobs/{array['id']}[10]")
    assert missing.status_code == 404
    assert "it has 0-9" in missing.text


async def test_cancel_and_retry_take_the_whole(served: Served, agent: FakeAgent) -> None:
    array = await _submit(served, array="0-2", job={"cpus": 4, "retry": {"max_retries": 0}})
    path = f"/v1/arrays/{array['id']}"
    await agent.end(await agent.take(), exit_code=3)
    found = await _until(served, array["id"], failed=1, reserved=1, queued=1)
    assert (found["failed"], found["state"]) == ("0", "running")
    retried = (await served.call("POST", f"{path}/retry")).json()
    assert "failed" not in retried["counts"]
    answer = await served.call("POST", f"{path}/cancel", json={"reason": "wrong"})
    # The sync that told of the end may have been offered the next member: that one drains.
    counts = answer.json()["counts"]
    assert counts.get("cancelled", 0) + counts.get("draining", 0) == 3
    assert answer.status_code == (202 if "draining" in counts else 200), answer.text


async def test_a_sweep_fills_the_command_and_the_environment(
    served: Served, agent: FakeAgent
) -> None:
    async with AsyncClient(served.url, SECRETS["submit"]) as client:
        array = await client.submit_sweep(
            {"grid": {"lr": [0.1, 1e-05], "seed": [7]}},
            argv=["train", "--lr", "{lr}", "--seed={seed}"],
            at_once=1,
        )
        assert (array.size, array.at_once) == (2, 1)
        members = [job async for job in client.jobs(array=array.id)]
        assert [job.spec.argv[2] for job in members] == ["1e-05", "0.1"]
        assert [a.id async for a in client.arrays()] == [array.id]
        assert [j async for j in client.jobs(array="none")] == []
    order = await agent.take()
    assert order.argv == ["train", "--lr", "0.1", "--seed=7"]
    assert order.env["HOLDFAST_PARAM_LR"] == "0.1"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"array": "5-1"}, "goes nowhere"),
        ({}, "either `array`"),
        ({"array": "0-1", "sweep": {}}, "either `array`"),
        ({"array": "0-1%2", "at_once": 3}, "differ"),
        ({"sweep": {"grid": {"p": []}}}, "is empty"),
        ({"array": "0-1", "job": {"argv": []}}, "job."),
        ({"array": "0-1", "job": {"argv": ["x"], "gpus": 9}}, "gpus"),
    ],
)
async def test_what_cannot_be_is_refused(
    served: Served, agent: FakeAgent, body: dict[str, Any], said: str
) -> None:
    answer = await served.call("POST", "/v1/arrays", json={"job": {"argv": ["x"]}, **body})
    assert answer.status_code == 422, answer.text
    assert said in answer.text


async def test_the_same_key_gives_the_same_array(served: Served) -> None:
    key = {"Idempotency-Key": "k1"}
    body = {"job": {"argv": ["x"]}, "array": "0-1"}
    first = await served.call("POST", "/v1/arrays", json=body, headers=key)
    again = await served.call("POST", "/v1/arrays", json=body, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = await served.call("POST", "/v1/arrays", json={**body, "array": "0-2"}, headers=key)
    assert other.status_code == 409
