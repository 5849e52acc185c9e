"""REPORT-1 over a real connection: one report that cannot be read does not hold up the others."""

from __future__ import annotations

import copy
from typing import Any

import httpx
import msgspec
import pytest

from holdfast.controller.sync.reports import read_sync
from holdfast.core.ids import TaskKey
from holdfast.errors import HoldfastError
from holdfast.wire import agent as wire
from tests.unit.controller.conftest import FakeAgent, Served, bearer
from tests.waits import within


async def post(agent: FakeAgent, *tasks: Any, **more: Any) -> httpx.Response:
    """A sync whose tasks are sent as they are."""
    agent.seq += 1
    body = {
        "incarnation": agent.incarnation,
        "seq": agent.seq,
        "settings_rev": agent.rev,
        "tasks": list(tasks),
        **more,
    }
    return await agent.served.http.post(
        "/v1/agent/sync", content=msgspec.json.encode(body), headers=bearer(agent.key)
    )


async def run_two(served: Served, agent: FakeAgent) -> list[wire.LaunchOrder]:
    """Two jobs that run on this host, each with three retries."""
    for _ in range(2):
        await served.submit(retry={"max_retries": 3, "retry_delay": 1})
    orders: dict[TaskKey, wire.LaunchOrder] = {}
    async with within(10):
        while len(orders) < 2:  # what was offered and not reported is offered again
            orders |= {order.key: order for order in (await agent.sync(wait=1.0)).launch}
    await agent.sync(*[agent.running(order) for order in orders.values()])
    return list(orders.values())


BAD_FACTS: list[Any] = [
    {"exit_code": "three"},
    {"exit_code": 300},
    {"exit_code": 0, "log_tail": "x" * 20_000},
    {"signal": 0},
    {"trip": {"watchdog": "sunspots", "exit_code": 1, "reason": ""}},
    {"stop_cause": "boredom"},
    "it ended",
    [],
]


@pytest.mark.parametrize("facts", BAD_FACTS)
async def test_an_end_that_cannot_be_read_is_on_record_as_such(
    served: Served, agent: FakeAgent, facts: Any
) -> None:
    bad, good = await run_two(served, agent)
    answer = await post(
        agent,
        {"key": bad.key, "state": "ended", "facts": facts},
        {"key": good.key, "state": "ended", "facts": {"exit_code": 0}},
    )
    assert answer.status_code == 200, answer.text
    found = wire.decode_sync_answer(answer.content)
    assert set(found.acked) == {bad.key, good.key}
    assert found.unread == []
    assert (await served.until(good.key.job_id, "succeeded"))["state"] == "succeeded"
    job = await served.until(bad.key.job_id, "failed")
    assert (job["cause"], job["attempts"]) == (
        "malformed_report",
        1,
    )  # three retries were asked for
    assert "never retried" in job["reason"]
    attempts = (await served.call("GET", f"/v1/jobs/{bad.key.job_id}/attempts")).json()["items"]
    assert attempts[0]["rule"] == "malformed-report"


@pytest.mark.parametrize("facts", [{}, {"facts": None}])
async def test_an_end_without_facts_is_malformed(
    served: Served, agent: FakeAgent, facts: dict[str, Any]
) -> None:
    order, other = await run_two(served, agent)
    answer = await post(
        agent, {"key": order.key, "state": "ended", **facts}, {"key": other.key, "state": "running"}
    )
    assert wire.decode_sync_answer(answer.content).acked == [order.key]
    assert (await served.until(order.key.job_id, "failed"))["cause"] == "malformed_report"
    assert (await served.job(other.key.job_id))["state"] == "running"


async def test_a_live_task_whose_beat_cannot_be_read_keeps_its_lease(
    served: Served, agent: FakeAgent
) -> None:
    order, other = await run_two(served, agent)
    answer = await post(
        agent,
        {"key": order.key, "state": "running", "beat": {"step": "many"}},
        {"key": other.key, "state": "running", "pid": 7},
    )
    found = wire.decode_sync_answer(answer.content)
    assert {item.key for item in found.renewed} == {order.key, other.key}
    assert found.lost == []
    assert (await served.job(order.key.job_id))["state"] == "running"


@pytest.mark.parametrize(
    "report",
    [
        {"key": ["job"], "state": "ended", "facts": {"exit_code": 0}},
        {"key": "job:0:1", "state": "running"},
        {"state": "running"},
        {"key": ["job", 0, 1], "state": "resting"},
        {"key": ["job", 0, 1]},
        17,
        None,
    ],
)
async def test_a_report_of_nobody_is_named_and_the_rest_go_through(
    served: Served, agent: FakeAgent, report: Any
) -> None:
    order, other = await run_two(served, agent)
    answer = await post(
        agent,
        {"key": order.key, "state": "running"},
        report,
        {"key": other.key, "state": "ended", "facts": {"exit_code": 0}},
    )
    assert answer.status_code == 200, answer.text
    found = wire.decode_sync_answer(answer.content)
    assert len(found.unread) == 1
    assert found.unread[0].startswith("tasks[1]: ")
    assert found.acked == [other.key]
    assert {item.key for item in found.renewed} == {order.key}
    assert (await served.until(other.key.job_id, "succeeded"))["state"] == "succeeded"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"incarnation": "x"}, 422),
        ({"tasks": {}}, 422),
        ({"seq": -1}, 422),
        ({"wait_seconds": "long"}, 422),
    ],
)
async def test_what_is_around_the_reports_must_fit(
    served: Served, agent: FakeAgent, change: dict[str, Any], status: int
) -> None:
    answer = await post(agent, **change)
    assert answer.status_code == status, answer.text
    assert answer.json()["field"] == next(iter(change))


async def test_binary_last_words_among_reports_that_cannot_be_read(
    served: Served, agent: FakeAgent
) -> None:
    order, other = await run_two(served, agent)
    facts = {"exit_code": 3, "log_tail": "a\x00b"}
    answer = await post(
        agent,
        {"key": order.key, "state": "ended", "facts": facts},
        {"key": other.key, "state": "ended", "facts": 1},
    )
    assert set(wire.decode_sync_answer(answer.content).acked) == {order.key, other.key}


def test_a_good_sync_is_decoded_once_and_as_before() -> None:
    body = b'{"incarnation":"incarnation-1","tasks":[{"key":["j",0,1],"state":"ended","facts":{"exit_code":0}}]}'
    assert read_sync(body) == (msgspec.json.decode(body, type=wire.SyncRequest), [])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b'{"tasks":[', b"\xff"])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(HoldfastError):
        read_sync(body)


def test_many_bad_reports_are_named_to_a_limit() -> None:
    body = {
        "incarnation": "incarnation-1",
        "tasks": [copy.copy({"state": "running"}) for _ in range(500)],
    }
    request, unread = read_sync(msgspec.json.encode(body))
    assert request.tasks == []
    assert len(unread) == wire.MAX_UNREAD
