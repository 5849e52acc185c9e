"""Operators' rules over HTTP: read, replaced, tried, in force for the next end, and harmless when
they cannot be read."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast.client import AsyncClient
from holdfast.core.endings.rules import MAX_TEXT_BYTES
from holdfast.errors import Forbidden, ValidationError
from tests.unit.controller.conftest import SECRETS, FakeAgent, Served

RULES = """\
[[rule]]
name = "config"
exit_codes = [64]
never_retry = true
message = "its configuration is wrong"

[[rule]]
name = "store-away"
pattern = "EndpointConnectionError"
cause = "agent_transient"
avoid_host = true
"""


async def put(served: Served, text: str, role: str = "admin") -> Any:
    return await served.call("PUT", "/v1/rules", role, json={"text": text})


async def attempt(served: Served, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await served.call("GET", f"/v1/jobs/{job_id}/attempts")).json()[
        "items"
    ][0]
    return found


async def test_rules_are_read_and_replaced(served: Served) -> None:
    empty = (await served.call("GET", "/v1/rules", "read")).json()
    assert (empty["text"], empty["rules"], empty["problem"]) == ("", [], "")
    answer = await put(served, RULES)
    assert answer.status_code == 200, answer.text
    assert [rule["name"] for rule in answer.json()["rules"]] == ["config", "store-away"]
    again = (await served.call("GET", "/v1/rules", "read")).json()
    assert again["text"] == RULES
    assert again["revision"] > empty["revision"]
    assert (await put(served, "")).json()["rules"] == []
    events = (await served.call("GET", "/v1/events?kind=settings.changed")).json()["items"]
    assert [event["data"] for event in events] == [{"rules": True, "by": "tester"}] * 2


@pytest.mark.parametrize("role", ["read", "submit"])
async def test_only_an_admin_writes(served: Served, role: str) -> None:
    assert (await put(served, RULES, role)).status_code == 403
    assert (await served.call("GET", "/v1/rules", role)).json()["text"] == ""


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        (
            RULES + '[[rule]]\nname = "bad"\npattern = "(?=a)b"\ncause = "unknown"\n',
            "line 14",
            "look-arounds",
        ),
        (RULES + "[[rule]]\nname = ", "line 13", "Invalid value"),
        ("x" * (MAX_TEXT_BYTES + 1), "text", ""),
        ("é" * (MAX_TEXT_BYTES // 2 + 1), "text", "bytes"),
        ("a\x00b", "text", "NUL"),
    ],
)
async def test_a_bad_rule_is_refused_with_its_line_and_changes_nothing(
    served: Served, text: str, field: str, says: str
) -> None:
    await put(served, RULES)
    answer = await put(served, text)
    assert answer.status_code == 422
    problem = answer.json()
    assert (problem["code"], problem["field"]) == ("validation_error", field)
    assert says in problem["detail"]
    assert (await served.call("GET", "/v1/rules")).json()["text"] == RULES


async def test_a_rule_decides_the_next_end(served: Served, agent: FakeAgent) -> None:
    await put(served, RULES)
    job = await served.submit(retry={"max_retries": 3, "retry_delay": 1})
    await agent.end(await agent.take(), exit_code=64)
    ended = await served.until(job["id"], "failed")
    assert (
        ended["reason"]
        == "its configuration is wrong; rule operator:config says it is never retried"
    )
    found = await attempt(served, job["id"])
    assert (found["cause"], found["rule"]) == ("nonzero_exit", "operator:config")
    other = await served.submit()
    await agent.end(
        await agent.take(), exit_code=1, log_tail="botocore.exceptions.EndpointConnectionError: x"
    )
    await served.until(other["id"], "queued", "reserved")
    found = await attempt(served, other["id"])
    assert (found["cause"], found["charged_to"]) == ("agent_transient", "infra")


async def test_trying(served: Served) -> None:
    async def found(**trial: Any) -> dict[str, Any]:
        answer = await served.call("POST", "/v1/rules/try", "read", json=trial)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    shipped = await found(exit_code=1, log=oom)
    assert (shipped["cause"], shipped["rule"], shipped["evidence"]["line"]) == (
        "oom_killed",
        "log-cuda-oom",
        oom,
    )
    assert shipped["charged_to"] == "retries"
    await put(served, RULES)
    assert (await found(exit_code=64))["never_retry"] is True
    mine = '[[rule]]\nname = "mine"\npattern = "CUDA"\ncause = "gpu_fault"\n'
    assert (await found(exit_code=1, log=oom, text=mine))["rule"] == "operator:mine"
    assert (await found(exit_code=64, text=""))["rule"] == "exit-code"
    assert (await found(signal=11))["exit_code"] == 139
    assert (await found(pull_error="manifest unknown"))["cause"] == "image_pull_failure"
    assert (await served.call("GET", "/v1/rules")).json()["text"] == RULES


@pytest.mark.parametrize(
    ("trial", "field"),
    [({"exit_code": 0}, "exit_code"), ({"exit_code": 1, "signal": 9}, "signal"), ({"exit_code": 1, "text": "["}, "line 1"),
     ({"exit_code": 256}, "exit_code"), ({"xids": [79]}, None)],
)  # fmt: skip
async def test_what_cannot_be_tried(
    served: Served, trial: dict[str, Any], field: str | None
) -> None:
    answer = await served.call("POST", "/v1/rules/try", json=trial)
    assert answer.status_code == 422
    assert answer.json().get("field") == field


async def test_rules_of_another_version_do_not_stop_the_controller(
    served: Served, agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    await served.store.settings.write_rules('[[rule]]\nname = "new"\nphase_of_moon = "full"\n')
    with caplog.at_level(logging.ERROR, "holdfast.controller"):
        view = (await served.call("GET", "/v1/rules")).json()
        assert view["rules"] == []
        assert "line 3: unknown field 'phase_of_moon'" in view["problem"]
        await served.call("PATCH", "/v1/config", json={"set": {"watchdog_cap": 4}})
        job = await served.submit()
        await agent.end(await agent.take(), exit_code=64)
        assert (await served.until(job["id"], "failed"))["cause"] == "nonzero_exit"
    assert sum("rules cannot be read" in record.message for record in caplog.records) == 1
    assert (await put(served, RULES)).json()["problem"] == ""


async def test_a_pattern_that_an_earlier_version_took_is_named_and_goes_on(
    served: Served, agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    old = '[[rule]]\nname = "old"\npattern = "lost(?! contact)"\nnever_retry = true\n'
    await served.store.settings.write_rules(old)
    with caplog.at_level(logging.WARNING, "holdfast.controller"):
        view = (await served.call("GET", "/v1/rules")).json()
    assert (view["outdated"], [rule["name"] for rule in view["rules"]]) == (["old"], ["old"])
    assert "the pattern of rule old is not one of RE2" in caplog.text
    job = await served.submit(retry={"max_retries": 3})
    await agent.end(await agent.take(), exit_code=1, log_tail="lost")
    assert "rule operator:old" in (await served.until(job["id"], "failed"))["reason"]
    both = await put(served, old + RULES)
    assert both.json()["outdated"] == ["old"]
    refused = await put(served, old.replace("contact", "power") + RULES)
    assert (refused.status_code, refused.json()["field"]) == (422, "line 3")


async def test_the_client(served: Served) -> None:
    async with AsyncClient(served.url, SECRETS["admin"]) as client:
        assert [rule.name for rule in (await client.set_rules(RULES)).rules] == [
            "config",
            "store-away",
        ]
        assert (await client.rules()).text == RULES
        assert (await client.try_rules(exit_code=64)).rule == "operator:config"
        with pytest.raises(ValidationError, match="line 1"):
            await client.set_rules("[[rule]]\n")
    async with AsyncClient(served.url, SECRETS["submit"]) as client:
        with pytest.raises(Forbidden):
            await client.set_rules("")
