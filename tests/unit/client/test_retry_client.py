"""The SDK's retries and projects: what is sent, what is refused before it is, what is never sent
twice."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client import AsyncClient, Client, RetryFields, RetryPolicy
from holdfast.client.specs import build_spec, merge_spec
from holdfast.core.causes import ELIGIBLE
from holdfast.core.spec import JobSpec
from holdfast.errors import Conflict, QuotaExceeded, ValidationError
from tests.unit.cli.stub import JOB, Answer, Stub, job_record, sent


@pytest.mark.parametrize(
    "retry",
    [
        {"max_retries": 3, "retry_delay": "30s", "max_retry_delay": "off"},
        RetryFields(max_retries=3, retry_delay=30.0, max_retry_delay=None),
    ],
)
def test_a_policy_is_taken_in_any_dress(stub: Stub, retry: Any) -> None:
    stub.on("POST /v1/jobs", Answer(job_record(), 201))
    wanted = {"max_retries": 3, "retry_delay": 30.0, "max_retry_delay": None}
    with Client(stub.url, "t") as client:
        client.submit(argv=["x"], retry=retry)
        assert sent(stub)["retry"] == wanted
        client.submit(JobSpec(argv=("x",), gpus=2), retry=retry, time_limit="2h")
        assert sent(stub)["retry"] == wanted
        assert (sent(stub)["gpus"], sent(stub)["time_limit_seconds"]) == (2, 7200.0)

    async def submit() -> None:
        async with AsyncClient(stub.url, "t") as client:
            await client.submit(argv=["x"], retry=retry)

    asyncio.run(submit())
    assert sent(stub)["retry"] == wanted


def test_a_whole_policy_sets_every_field() -> None:
    policy = RetryPolicy(max_retries=2, jitter="random", eligible_causes=ELIGIBLE[:2])
    fields = build_spec({"argv": ["x"], "retry": policy}).retry
    assert fields is not None
    assert msgspec.structs.asdict(fields) == msgspec.structs.asdict(policy)


def test_fields_go_over_a_spec_and_none_takes_one_away() -> None:
    spec = JobSpec(
        argv=("x",),
        name="n",
        retry=RetryFields(max_retries=1),
        env={"A": "1"},
        time_limit_seconds=5.0,
    )
    assert merge_spec(spec, {}) == spec
    changed = merge_spec(
        spec, {"name": None, "time_limit": "off", "retry": {"backoff": "exponential"}}
    )
    assert (changed.name, changed.time_limit_seconds, changed.env) == (None, "off", {"A": "1"})
    assert changed.retry == RetryFields(backoff="exponential"), (
        "a policy given is the job's own, whole"
    )


@given(st.lists(st.sampled_from(ELIGIBLE), unique=True))
def test_causes_are_taken_as_list_or_text(causes: list[Any]) -> None:
    as_list = build_spec({"argv": ["x"], "retry": {"eligible_causes": causes}}).retry
    as_text = build_spec(
        {"argv": ["x"], "retry": {"eligible_causes": ",".join(causes) or "none"}}
    ).retry
    assert as_list is not None
    assert as_list == as_text
    assert as_list.eligible_causes == tuple(causes)


@pytest.mark.parametrize(
    ("retry", "field"),
    [
        ({"max_retry": 1}, "retry.max_retry"),
        ({"max_retries": "3"}, "retry.max_retries"),
        ({"max_retries": 10_001}, "retry.max_retries"),
        ({"retry_delay": "soon"}, "retry.retry_delay"),
        ({"eligible_causes": ["quota_exceeded"]}, "retry.eligible_causes"),
        ({"eligible_causes": "failures,nope"}, "retry.eligible_causes"),
        (3, "retry"),
        (RetryFields(eligible_causes=("malformed_report",)), "retry.eligible_causes"),  # type: ignore[arg-type]  # as text
    ],
)
def test_a_bad_policy_never_leaves(stub: Stub, retry: Any, field: str) -> None:
    with Client(stub.url, "t") as client, pytest.raises(ValidationError) as caught:
        client.submit(argv=["x"], retry=retry)
    assert caught.value.field == field
    assert stub.requests == []


def test_over_quota_is_its_own_error_and_is_sent_once(stub: Stub) -> None:
    stub.on(
        "POST /v1/jobs", Answer({"status": 403, "code": "quota_exceeded", "detail": "2 of 2"}, 403)
    )
    with Client(stub.url, "t") as client, pytest.raises(QuotaExceeded, match="2 of 2"):
        client.submit(argv=["x"])
    assert len(stub.requests) == 1

    async def submit() -> None:
        async with AsyncClient(stub.url, "t") as client:
            await client.submit(argv=["x"])

    with pytest.raises(QuotaExceeded):
        asyncio.run(submit())
    assert len(stub.requests) == 2


def test_a_counted_retry_that_is_refused(stub: Stub) -> None:
    stub.on(
        f"POST /v1/jobs/{JOB}/retry",
        Answer({"status": 409, "code": "retries_spent", "detail": "all 3 are spent"}, 409),
    )
    with Client(stub.url, "t") as client, pytest.raises(Conflict, match="all 3") as caught:
        client.retry(JOB, counted=True)
    assert caught.value.code == "retries_spent"
    assert sent(stub) == {"counted": True, "from_scratch": False}


def test_the_two_clients_read_the_same(stub: Stub) -> None:
    project = {"name": "vision", "settings": {"quota_jobs": 2}, "running": 1}
    view = {
        "enabled": True,
        "holds": [],
        "backing_off": 0,
        "held": 0,
        "rate_limit": None,
        "projects": [],
    }
    policy = {
        "policy": {"max_retries": 1},
        "fields": [{"field": "max_retries", "value": 1, "source": "job"}],
    }
    state = {"sentence": "attempt 1 of 2, running", "attempt": 1, "of": 2, "retries_left": 1}
    link = {"number": 1, "parent": None, "retry_count": 0}
    stub.on("GET /v1/projects", Answer({"items": [project], "next": None}))
    stub.on("GET /v1/projects/vision", Answer(project))
    stub.on("PUT /v1/projects/vision", Answer(project))
    stub.on("GET /v1/retries", Answer(view))
    stub.on(f"GET /v1/jobs/{JOB}/policy", Answer(policy))
    job = msgspec.to_builtins(job_record())
    stub.on(f"GET /v1/jobs/{JOB}", Answer({**job, "retry_state": state, "retry_chain": [link]}))

    async def ask() -> list[Any]:
        async with AsyncClient(stub.url, "t") as client:
            return [
                await client.projects(),
                await client.project("vision"),
                await client.hold_retries("vision", "why"),
                await client.release_retries("vision"),
                await client.policy(JOB),
                await client.job(JOB),
            ]

    with Client(stub.url, "t") as client:
        found = [
            client.projects(),
            client.project("vision"),
            client.hold_retries("vision", "why"),
            client.release_retries("vision"),
            client.policy(JOB),
            client.job(JOB),
        ]
        held = client.job(JOB).retry_state
    assert found == asyncio.run(ask())
    assert held is not None
    assert held.sentence == "attempt 1 of 2, running"
