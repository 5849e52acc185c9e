"""A fall is explained in one sentence wherever it is shown (CLASSIFY-4)."""

from __future__ import annotations

import logging

import pytest

from holdfast.core.endings.drain import find_fall
from tests.unit.controller.conftest import FakeAgent, Served
from tests.unit.controller.loops.test_gangs import ended, run_gang, until_told_to_stop

RULES = """
[[rule]]
name = "licence"
exit_codes = [41]
cause = "agent_transient"
message = "the licence server was away"
"""


async def test_a_rule_is_heard_while_the_attempt_drains_and_after(
    served: Served, agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert (await served.call("PUT", "/v1/rules", json={"text": RULES})).status_code == 200
    job_id, reports = await run_gang(served, agent, tasks=2, cpus=1)
    await agent.sync(reports[0], ended(reports[1].key, exit_code=41))
    sentence = "rank 1 on h1: the licence server was away"

    job = await served.job(job_id)
    assert (job["state"], job["drain_cause"]) == ("draining", "agent_transient")
    assert job["drain_reason"] == sentence
    why = (await served.call("GET", f"/v1/jobs/{job_id}/why")).json()
    assert why["summary"].endswith(f": {sentence}")
    events = (await served.call("GET", f"/v1/events?job={job_id}&kind=job.draining")).json()
    assert [(e["message"], e["data"]["cause"]) for e in events["items"]] == [
        (sentence, "agent_transient")
    ]
    assert [
        r.getMessage() for r in caplog.records if r.getMessage().startswith("drain started")
    ] == [f"drain started: {sentence}"]
    rules = (await served.controller.settings.current()).rules
    record, tasks = (
        await served.store.jobs.get_job(job_id),
        await served.store.jobs.list_tasks(job_id),
    )
    trigger, failures = find_fall(record, tasks, rules)  # what the gang view draws
    assert trigger is not None
    assert (trigger.rank, failures[1].message) == (1, "the licence server was away")
    orders = await until_told_to_stop(agent, reports[:1])
    assert [(str(o.cause), o.reason) for o in orders] == [("sibling_drained", sentence)]

    await agent.sync(ended(reports[0].key, signal=15, stopped=True))
    await served.until(job_id, "queued", "reserved")
    (attempt, *_) = (await served.call("GET", f"/v1/jobs/{job_id}/attempts")).json()["items"]
    assert (attempt["cause"], attempt["rule"]) == ("agent_transient", "operator:licence")
    assert attempt["reason"].split(";")[0] == sentence
    assert attempt["members"][1]["message"] == "the licence server was away"
