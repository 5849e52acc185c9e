"""The users' API over a real connection: permissions, refusals, paging, streams."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import __version__
from holdfast.controller.app import App
from holdfast.controller.routes import ENDPOINTS
from holdfast.controller.runtime.auth import make_new_id
from holdfast.wire import api as wire_api
from holdfast.wire.operations.operation import Role
from holdfast.work.making.kept import tell_age
from tests.unit.controller.conftest import SECRETS, FakeAgent, Served, bearer, gpu
from tests.waits import within

JOB = "0" * 20


def test_every_route_has_a_role_and_only_a_few_have_none() -> None:
    assert {e.path for e in ENDPOINTS if e.role is Role.ANYONE} == {
        "/",
        "/healthz",
        "/questions/{run}/{node}",
        "/readyz",
    }
    assert all(isinstance(e.role, Role) for e in ENDPOINTS)
    assert {e.path for e in ENDPOINTS if e.role is Role.REPLICA} == {"/v1/replicas/sessions/{id}"}
    assert {e.path for e in ENDPOINTS if e.role in (Role.HOST, Role.JOIN)} == {
        f"/v1/agent/{name}"
        for name in (
            *("register", "sync", "logs", "forensics", "checkpoint", "checkpoint/skip", "health"),
            *("calls", "call-checkpoint", "values/{sha256}", "caches", "controllers"),
            *("bundles/{digest}", "bundles/{digest}/packs/{pack}"),
            *("outputs", "outputs/missing", "outputs/packs", "sessions/{id}", "sessions/{id}/end"),
        )
    }


async def test_who_may_call_what(served: Served) -> None:
    """Every route, with every kind of caller: no token, a wrong token, each role, a join token."""
    order = {Role.READ: 0, Role.SUBMIT: 1, Role.ADMIN: 2}
    for endpoint in ENDPOINTS:
        path = (
            endpoint.path.replace("{id}", JOB)
            .replace("{name}", "nothing")
            .replace("{host}", "nothing")
        )
        path = path.replace("{action}", "drain")
        if endpoint.role is Role.ANYONE or endpoint.path == "/metrics":
            assert (await served.call(endpoint.method, path, None)).status_code == 200
            continue
        for headers in (
            {},
            bearer("hft_wrong"),
            {"Authorization": "Basic eDp5"},
            {"Authorization": "Bearer"},
        ):
            body = (
                b'{"incarnation":"12345678","facts":{"name":"x"}}'
                if endpoint.role is Role.JOIN
                else None
            )
            answer = await served.call(endpoint.method, path, None, headers=headers, content=body)
            assert answer.status_code == 401, (endpoint.path, headers)
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert answer.headers["content-type"] == "application/problem+json"
        for place, role in enumerate(("read", "submit", "admin")):
            if endpoint.role in order:
                answer = await served.call(endpoint.method, path, role, content=b"!")
                # The cluster's own targets of notices are an admin's to change, a project's are not.
                own = endpoint.path.startswith("/v1/notices/{") and endpoint.method != "GET"
                refused = place < (2 if own else order[endpoint.role])
                assert (answer.status_code == 403) == refused, (
                    endpoint.method,
                    endpoint.path,
                    role,
                    answer.text,
                )
            elif endpoint.role in (Role.HOST, Role.REPLICA):
                assert (await served.call(endpoint.method, path, role)).status_code == 401
        if endpoint.role in order:
            assert (await served.call(endpoint.method, path, "join")).status_code == 401


async def test_a_revoked_token_is_refused(served: Served) -> None:
    made = (await served.call("POST", "/v1/tokens", json={"role": "read", "name": "mine"})).json()
    assert (await served.http.get("/v1/whoami", headers=bearer(made["secret"]))).json()[
        "name"
    ] == "mine"
    listed = (await served.call("GET", "/v1/tokens")).text
    assert made["id"] in listed
    assert made["secret"] not in listed
    assert (await served.call("DELETE", f"/v1/tokens/{made['id']}")).status_code == 204
    assert (await served.http.get("/v1/whoami", headers=bearer(made["secret"]))).status_code == 401


BAD: list[tuple[str, bytes, int, str, str | None]] = [
    ("empty", b"", 400, "malformed_json", None),
    ("not JSON", b"{nope", 400, "malformed_json", None),
    ("not UTF-8", b'{"argv":["\xff\xfe"]}', 400, "malformed_json", None),
    ("half a surrogate", b'{"argv":["\\ud800"]}', 400, "malformed_json", None),
    ("deep", b"[" * 200_000, 422, "validation_error", None),
    ("an array", b"[]", 422, "validation_error", None),
    ("NUL", b'{"argv":["a\\u0000b"]}', 422, "validation_error", "argv"),
    (
        "NUL in a label",
        b'{"argv":["a"],"labels":{"x":"a\\u0000b"}}',
        422,
        "validation_error",
        "labels.x",
    ),
    ("no command", b"{}", 422, "validation_error", "argv"),
    ("both", b'{"argv":["a"],"shell":"b"}', 422, "validation_error", "argv"),
    ("unknown field", b'{"argv":["a"],"nice":1}', 422, "validation_error", None),
    ("priority", b'{"argv":["a"],"priority":101}', 422, "validation_error", "priority"),
    ("huge number", b'{"argv":["a"],"gpus":1e999}', 422, "validation_error", "gpus"),
    ("huge integer", b'{"argv":["a"],"gpus":' + b"9" * 400 + b"}", 422, "validation_error", "gpus"),
    ("unknown queue", b'{"argv":["a"],"queue":"nowhere"}', 422, "unknown_queue", "queue"),
    ("ttl", b'{"argv":["a"],"lease_ttl_seconds":1}', 422, "validation_error", "lease_ttl_seconds"),
    (
        "limit",
        b'{"argv":["a"],"time_limit_seconds":0.001}',
        422,
        "validation_error",
        "time_limit_seconds",
    ),
    ("env", b'{"argv":["a"],"env":{"A B":"x"}}', 422, "validation_error", "env"),
    ("reserved", b'{"argv":["a"],"env":{"HOLDFAST_X":"x"}}', 422, "validation_error", "env"),
]


@pytest.mark.parametrize(("name", "body", "status", "code", "field"), BAD, ids=[b[0] for b in BAD])
async def test_bad_jobs(
    served: Served, name: str, body: bytes, status: int, code: str, field: str | None
) -> None:
    answer = await served.call("POST", "/v1/jobs", content=body)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["detail"]
    if field is not None:
        assert problem["field"].startswith(field)
    assert (await served.call("GET", "/v1/jobs")).json()["items"] == []


async def test_an_unknown_queue_is_told_with_those_there_are(served: Served) -> None:
    problem = (
        await served.call("POST", "/v1/jobs", json={"argv": ["a"], "queue": "nowhere"})
    ).json()
    assert "gpu" in problem["detail"]
    assert "holdfast queues set nowhere" in problem["detail"]


async def test_impossible_resources(served: Served, agent: FakeAgent) -> None:
    problem = (await served.call("POST", "/v1/jobs", json={"argv": ["a"], "cpus": 400})).json()
    assert (problem["status"], problem["code"]) == (422, "impossible_resources")
    assert "400 CPU slots" in problem["detail"]


async def test_what_no_host_can_run_yet_is_told_at_once_wherever_it_is_submitted(
    served: Served, agent: FakeAgent
) -> None:
    """It had waited without a word. A pool that could bring such a host counts."""
    wide, far = {"argv": ["a"], "tasks": 40}, {"argv": ["a"], "host_labels": {"rack": "b"}}
    fits = {"argv": ["a"]}

    async def note(method: str, path: str, body: object) -> str:
        answer = await served.call(method, path, json=body)
        assert answer.status_code in (200, 201), answer.text
        return answer.headers.get("holdfast-note", "")

    says_wide, says_far = "so it waits until more hosts join", "has the labels rack=b"
    for job, says in ((wide, says_wide), (far, says_far)):
        assert says in await note("POST", "/v1/jobs", job)
        assert says in await note("POST", "/v1/jobs/batch", {"jobs": [fits, job]})
        assert says in await note("POST", "/v1/arrays", {"job": job, "array": "0-3"})
        schedule = {"job": job, "every_seconds": 3600}
        assert says in await note("PUT", "/v1/schedules/s", schedule)
        node = {"name": "n", "job": {"spec": job}}
        run = {
            "id": "0" * 19 + ("1" if job is wide else "2"),
            "spec": {"name": "w", "nodes": [node]},
        }
        assert says in await note("POST", "/v1/workflows", run)
    assert await note("POST", "/v1/jobs", fits) == ""
    impossible = {"name": "n", "job": {"spec": {"argv": ["a"], "cpus": 400}}}
    run = {"id": "0" * 19 + "3", "spec": {"name": "w", "nodes": [impossible]}}
    answer = await served.call("POST", "/v1/workflows", json=run)
    assert (answer.status_code, answer.json()["code"]) == (422, "impossible_resources")
    pool = {"provider": "local", "labels": {"rack": "b"}, "offers": [{"name": "o", "cpu_slots": 8}]}
    assert (await served.call("PUT", "/v1/pools/p", json=pool)).status_code == 200
    assert await note("POST", "/v1/jobs", far) == ""
    assert await note("POST", "/v1/jobs", wide) == ""


async def test_a_batch_is_all_or_none(served: Served) -> None:
    jobs = [{"argv": ["a"]}, {"argv": ["b"], "queue": "nowhere"}]
    answer = await served.call("POST", "/v1/jobs/batch", json={"jobs": jobs})
    assert (answer.status_code, answer.json()["field"]) == (422, "jobs[1].queue")
    assert (await served.call("GET", "/v1/jobs")).json()["items"] == []
    answer = await served.call("POST", "/v1/jobs/batch", json={"jobs": [{"argv": ["a"]}] * 3})
    assert answer.status_code == 201
    assert len(answer.json()["items"]) == 3


async def test_idempotency(served: Served) -> None:
    first = await served.call(
        "POST", "/v1/jobs", json={"argv": ["a"]}, headers={"Idempotency-Key": "k1"}
    )
    again = await served.call("POST", "/v1/jobs", json={"argv": ["a"], "idempotency_key": "k1"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = await served.call(
        "POST", "/v1/jobs", json={"argv": ["b"]}, headers={"Idempotency-Key": "k1"}
    )
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
    both = await served.call(
        "POST",
        "/v1/jobs",
        json={"argv": ["a"], "idempotency_key": "k2"},
        headers={"Idempotency-Key": "k1"},
    )
    assert both.status_code == 422
    twins = await asyncio.gather(
        *(
            served.call("POST", "/v1/jobs", json={"argv": ["c"], "idempotency_key": "k9"})
            for _ in range(6)
        )
    )
    assert len({t.json()["id"] for t in twins}) == 1
    assert sorted(t.status_code for t in twins) == [200] * 5 + [201]


async def test_secrets_are_shown_to_nobody_but_the_host(served: Served, agent: FakeAgent) -> None:
    job = await served.submit(secrets={"TOKEN": "very-secret"})
    order = await agent.take()
    assert order.secrets == {"TOKEN": "very-secret"}
    for path in (
        "/v1/jobs",
        f"/v1/jobs/{job['id']}",
        f"/v1/jobs/{job['id']}/attempts",
        "/v1/events",
    ):
        assert "very-secret" not in (await served.call("GET", path)).text


async def test_queue_by_default(served: Served) -> None:
    assert (await served.submit())["queue"] == "cpu"
    assert (await served.submit(gpus=1))["queue"] == "gpu"


async def test_oversize(served: Served, agent: FakeAgent) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b" " * 65_536

    declared = await served.call("POST", "/v1/jobs", content=b" " * (wire_api.MAX_BODY_BYTES + 1))
    chunked = await served.call("POST", "/v1/jobs", content=endless())
    for answer in (declared, chunked):
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    answer = await served.http.post(
        "/v1/agent/logs", content=b"x" * (4 << 20), headers=bearer(agent.key)
    )
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("query", "words"), [("state=done", "waiting or queued"), ("cause=bad", "or stalled")]
)
async def test_a_wrong_word_is_answered_with_the_right_ones(
    served: Served, query: str, words: str
) -> None:
    answer = await served.call("GET", f"/v1/jobs?{query}")
    assert words in answer.json()["detail"]


async def test_the_front_page_says_what_this_is_and_nothing_secret(served: Served) -> None:
    answer = await served.call("GET", "/", None)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert f"Holdfast {__version__}" in answer.text
    assert 'href="/v1/openapi.json"' in answer.text
    dashboard = served.controller.origins[0]
    assert f'href="{dashboard}/"' in answer.text, "the address that `up` prints leads to the pages"
    assert answer.headers["content-security-policy"] == "default-src 'none'"
    assert not any(secret in answer.text for secret in SECRETS.values())
    assert (await served.call("HEAD", "/", None)).status_code == 200
    assert (await served.call("POST", "/", None)).status_code == 405


async def test_the_page_of_a_question_runs_its_own_script_alone(served: Served) -> None:
    answer = await served.call("GET", "/questions/any-run/a%3Cnode", None)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = answer.headers["content-security-policy"]
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "a<node" not in answer.text  # nothing of the address is in it
    assert "innerHTML" not in script  # nor is anything that the API says taken for HTML


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1", 404), ("GET", "/v1/nope", 404), ("GET", "/v1/jobs/", 404),
        ("DELETE", "/v1/jobs", 405), ("PATCH", "/v1/jobs/" + JOB, 405), ("GET", f"/v1/jobs/{JOB}", 404),
        ("GET", "/v1/jobs/..%2f..%2fetc", 404), ("GET", "/v1/jobs/%00", 404), ("GET", "/v1/jobs/%ff", 404),
        ("GET", "/v1/queues/%00", 404), ("GET", "/v1/hosts/%00", 404), ("GET", "/v1/queues/nope", 404),
        ("GET", "/v1/jobs?cursor=garbage", 422), ("GET", "/v1/jobs?limit=0", 422), ("GET", "/v1/jobs?limit=x", 422),
        ("GET", "/v1/jobs?state=nope", 422), ("GET", "/v1/jobs?stat=failed", 422), ("GET", "/v1/jobs?label=x", 422),
        ("GET", "/v1/jobs?limit=1&limit=2", 422), ("GET", "/v1/jobs?name=%00", 422), ("GET", "/v1/jobs?name=%ff", 422),
        ("GET", "/v1/events?after=garbage", 422), ("GET", "/v1/events?kind=!", 422), ("GET", "/v1/config?queue=nope", 404),
        ("GET", f"/v1/jobs/{JOB}/logs?offset=-1", 422), ("POST", f"/v1/hosts/{JOB}/explode", 404),
        ("PUT", "/v1/queues/%20bad", 422), ("DELETE", "/v1/tokens/x", 404),
    ],
)  # fmt: skip
async def test_bad_paths_and_queries(served: Served, method: str, path: str, status: int) -> None:
    answer = await served.call(method, path)
    assert (answer.status_code, answer.json()["status"]) == (status, status), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    if status == 405:
        assert answer.headers["allow"]


async def test_pages_of_jobs(served: Served) -> None:
    ids = [(await served.submit(name=f"n{n}", labels={"k": str(n % 2)}))["id"] for n in range(5)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await served.call("GET", "/v1/jobs", params={"limit": "2", **cursor})).json()
        seen += [j["id"] for j in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert seen == ids[::-1]
    odd = (await served.call("GET", "/v1/jobs", params={"label": "k=1"})).json()["items"]
    assert [j["name"] for j in odd] == ["n3", "n1"]
    null = (await served.call("GET", "/v1/jobs", params={"name": "null"})).json()["items"]
    assert null == [], "the word null is a name like any other"


async def test_queues(served: Served) -> None:
    made = await served.call(
        "PUT", "/v1/queues/team%2Fnight", json={"set": {"max_running": 2, "stall_watch": "off"}}
    )
    assert (made.status_code, made.json()["settings"]) == (
        200,
        {"max_running": 2, "stall_watch": False},
    )
    assert (await served.call("GET", "/v1/queues/team%2Fnight")).json()["name"] == "team/night"
    await served.submit(queue="team/night")
    assert (await served.call("DELETE", "/v1/queues/team%2Fnight")).status_code == 409
    paused = await served.call(
        "POST", "/v1/queues/team%2Fnight/pause", json={"reason": "maintenance"}
    )
    assert paused.json()["paused_reason"] == "maintenance"
    assert (await served.call("POST", "/v1/queues/team%2Fnight/resume")).json()["paused_at"] is None
    bad = await served.call("PUT", "/v1/queues/x", json={"set": {"sync_interval_seconds": 1}})
    assert (bad.status_code, bad.json()["field"]) == (422, "sync_interval_seconds")


async def test_config_says_where_a_value_comes_from(served: Served) -> None:
    await served.call("PATCH", "/v1/config", json={"set": {"grace_seconds": "20s"}})
    await served.call("PUT", "/v1/queues/video", json={"set": {"stall_watch": False}})
    found = {
        e["name"]: e
        for e in (await served.call("GET", "/v1/config", params={"queue": "video"})).json()["items"]
    }
    assert found["grace_seconds"] == {"name": "grace_seconds", "value": 20.0, "source": "cluster"}
    assert found["stall_watch"]["source"] == "queue"
    assert found["infra_cap"]["source"] == "default"
    answer = await served.call("PATCH", "/v1/config", json={"set": {"nope": 1}})
    assert answer.status_code == 422


async def test_a_job_is_stopped_by_the_clock_only_where_a_layer_says_so(served: Served) -> None:
    """Its submission, its queue or its project; `limits` say which, and when."""
    await served.call("PUT", "/v1/queues/short", json={"set": {"time_limit_seconds": 60}})
    await served.call("PUT", "/v1/projects/p", json={"set": {"time_limit_seconds": 120}})
    agent = FakeAgent(served, "g1", gpus=[gpu(0)])
    await agent.register()
    cases: tuple[tuple[dict[str, Any], float | None, str], ...] = (
        ({}, None, ""),
        ({"gpus": 1}, None, ""),
        ({"time_limit_seconds": 9}, 9.0, "job"),
        ({"queue": "short"}, 60.0, "queue"),
        ({"project": "p"}, 120.0, "project"),
        ({"project": "p", "queue": "short"}, 60.0, "queue"),
        ({"project": "p", "time_limit_seconds": "off"}, None, "job"),
    )
    for asked, limit, source in cases:
        job = await served.submit(**asked)
        said = job["limits"]
        assert (said["time_limit_seconds"], said["time_limit_source"]) == (limit, source), asked
        assert said["backfills"] is (limit is not None)
        order = await agent.take()
        assert order.watch.time_limit_seconds == limit
        await agent.sync(agent.running(order))
        shown = await served.job(job["id"])
        began = datetime.fromisoformat(shown["started_at"])
        stops = shown["limits"]["stops_at"]
        assert (stops is None) == (limit is None)
        if limit is not None:
            assert (datetime.fromisoformat(stops) - began).total_seconds() == limit
        why = (await served.call("GET", f"/v1/jobs/{job['id']}/why")).json()
        codes = {line["code"] for line in why["lines"]}
        assert codes & {"time_limit", "no_time_limit", "unwatched"}, codes
        await agent.end(order, exit_code=0)


async def test_a_name_tells_how_long_its_next_job_should_take(served: Served) -> None:
    agent = FakeAgent(served, "h1")
    await agent.register()
    own = await served.submit(name="nightly", expected_seconds=7200)
    assert (own["limits"]["expected_seconds"], own["limits"]["expected_source"]) == (7200, "job")
    order = await agent.take()
    await agent.sync(agent.running(order))
    await agent.end(order, exit_code=0)
    later = (await served.submit(name="nightly"))["limits"]
    assert (later["expected_source"], later["backfills"]) == ("history", True)
    assert 0 < later["expected_seconds"] < 60
    other = (await served.submit(name="nightly", project="other"))["limits"]
    assert (other["expected_seconds"], other["backfills"]) == (None, False)
    refused = await served.call(
        "POST", "/v1/jobs", json={"argv": ["x"], "expected_seconds": 90, "time_limit_seconds": 60}
    )
    assert (refused.status_code, refused.json()["field"]) == (422, "expected_seconds")


async def test_why_says_where_nothing_would_stop_a_job_that_hangs(served: Served) -> None:
    agent = FakeAgent(served, "g1")
    await agent.register()

    async def codes(**spec: Any) -> set[str]:
        job = await served.submit(**spec)
        order = await agent.take()
        await agent.sync(agent.running(order))
        why = (await served.call("GET", f"/v1/jobs/{job['id']}/why")).json()
        await agent.end(order, exit_code=0)
        found = {line["code"]: line["message"] for line in why["lines"]}
        assert "nothing will stop it" in found.get("unwatched", "nothing will stop it")
        return set(found)

    assert "unwatched" in await codes()
    assert "unwatched" not in await codes(time_limit_seconds=60)
    assert "unwatched" not in await codes(first_beat_timeout_seconds=60)


@pytest.mark.parametrize(("days", "says"), [(45, True), (20, False)])
async def test_why_says_that_a_shared_environment_is_old(
    served: Served, tmp_path: Path, capfd: pytest.CaptureFixture[str], days: int, says: bool
) -> None:
    tell_age(tmp_path / ("0a" * 12 + "-1"), {"made_at": time.time() - days * 86_400 - 60})
    said = capfd.readouterr().out.encode()
    agent = FakeAgent(served, "s1")
    await agent.register()
    job = await served.submit(setup="pip install torch")
    order = await agent.take()
    await agent.sync(agent.running(order))
    await agent.send_log(order.key, said + b"step 1\n")

    async def find_lines() -> list[str]:
        why = (await served.call("GET", f"/v1/jobs/{job['id']}/why")).json()
        return [x["message"] for x in why["lines"] if x["code"] == "old_environment"]

    old = f"the environment {'0a' * 12}-1 was made {days} days ago"
    old += ", so packages whose versions are not pinned are of that time"
    assert await find_lines() == ([old] if says else [])
    await agent.end(order, exit_code=1)
    assert await find_lines() == ([old] if says else []), "also of a job that failed of it"


async def test_why(served: Served) -> None:
    job = await served.submit(queue="gpu", gpus=1)
    why = (await served.call("GET", f"/v1/jobs/{job['id']}/why")).json()
    assert why["lines"][0]["code"] == "no_hosts"
    agent = FakeAgent(served, "g1", gpus=[gpu(0)], queues=["video"])
    await agent.register()
    why = (await served.call("GET", f"/v1/jobs/{job['id']}/why")).json()
    assert why["lines"][0]["code"] == "no_host_serves_queue"
    await served.call("POST", "/v1/queues/gpu/pause", json={"reason": "lunch"})
    why = (await served.call("GET", f"/v1/jobs/{job['id']}/why")).json()
    assert (why["lines"][0]["code"], "lunch" in why["summary"]) == ("queue_paused", True)


async def test_hosts(served: Served, agent: FakeAgent) -> None:
    drained = await served.call("POST", "/v1/hosts/h1/drain", json={"reason": "disk"})
    assert (drained.json()["state"], drained.json()["reason"]) == ("draining", "disk")
    again = await served.call("POST", "/v1/hosts/h1/release")
    assert (again.status_code, again.json()["status"]) == (409, 409)
    undrained = (await served.call("POST", "/v1/hosts/h1/undrain")).json()
    assert undrained["state"] == "active"
    assert undrained["reason"].startswith("undrained by ")
    assert (await served.call("GET", "/v1/hosts", params={"dead": "1"})).json()["items"] == []


class Stream:
    """Reads server-sent events off a real connection."""

    def __init__(self, served: Served, path: str, **more: Any) -> None:
        headers = {
            **bearer(SECRETS["read"]),
            "Accept": "text/event-stream",
            **more.pop("headers", {}),
        }
        self._open = served.http.stream("GET", path, headers=headers, **more)

    async def __aenter__(self) -> Stream:
        self._answer = await self._open.__aenter__()
        assert self._answer.headers["content-type"].startswith("text/event-stream")
        self._lines = self._answer.aiter_lines()
        return self

    async def __aexit__(self, *info: object) -> None:
        await self._open.__aexit__(*info)  # type: ignore[arg-type]  # httpx's own types of an exit

    async def next(self, seconds: float = 10) -> dict[str, Any]:
        found: dict[str, Any] = {}
        async with within(seconds):
            async for line in self._lines:
                if not line and found:
                    return found
                name, _, value = line.partition(": ")
                if name in ("event", "id"):
                    found[name] = value
                elif name == "data":
                    found["data"] = json.loads(value)
        raise EOFError


async def test_events_resume_where_the_reader_stopped(served: Served) -> None:
    first = await served.submit(name="one")
    async with Stream(served, "/v1/events", params={"kind": "job.*"}) as stream:
        event = await stream.next()
        assert (event["event"], event["data"]["job_id"]) == ("job.submitted", first["id"])
        second = await served.submit(name="two")
        live = await stream.next(3)
        assert live["data"]["job_id"] == second["id"]
    third = await served.submit(name="three")
    async with Stream(
        served, "/v1/events", params={"kind": "job.*"}, headers={"Last-Event-ID": live["id"]}
    ) as stream:
        assert (await stream.next())["data"]["job_id"] == third["id"]
    only = (await served.call("GET", "/v1/events", params={"job": second["id"]})).json()["items"]
    assert {e["job_id"] for e in only} == {second["id"]}
    last = (await served.call("GET", "/v1/events", params={"tail": 1})).json()
    assert [e["job_id"] for e in last["items"]] == [third["id"]]


async def push(
    served: Served,
    agent: FakeAgent,
    key: Any,
    data: bytes,
    offset: int = 0,
    ended: bool = False,
    stream: str = "stdout",
) -> None:
    answer = await agent.send_log(key, data, offset, ended, stream)
    assert (answer.status_code, answer.json().get("refused", [])) == (200, []), answer.text


async def test_logs_are_followed_across_attempts_to_the_end(
    served: Served, agent: FakeAgent
) -> None:
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    async with Stream(
        served, f"/v1/jobs/{job['id']}/logs", params={"follow": "1", "stream": "stdout"}
    ) as stream:
        assert (await stream.next())["event"] == "state"
        await push(served, agent, order.key, b"first\n")
        log = await until_event(stream, "log")
        assert (base64.b64decode(log["data"]), log["attempt"], log["gap"]) == (b"first\n", 1, 0)
        await push(served, agent, order.key, b"", 6, True)
        agent.incarnation = "incarnation-of-h1-2"
        await agent.register()
        second = await agent.take()
        await agent.sync(agent.running(second))
        await push(served, agent, second.key, b"again\n", 0, True)
        log = await until_event(stream, "log")
        assert (base64.b64decode(log["data"]), log["attempt"]) == (b"again\n", 2)
        await agent.end(second, exit_code=0)
        end = await until_event(stream, "end")
        assert end["state"] == "succeeded"
        with pytest.raises(EOFError):
            await stream.next()


async def test_a_gap_is_told(served: Served, agent: FakeAgent) -> None:
    await served.call("PATCH", "/v1/config", json={"set": {"log_keep_mb": 0.1}})
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    piece = bytes(range(256)) * 256
    for n in range(8):
        await push(served, agent, order.key, piece, n * len(piece), n == 7)
    await push(served, agent, order.key, b"", 0, True, "stderr")
    await agent.end(order, exit_code=0)
    seen = gap = 0
    async with Stream(served, f"/v1/jobs/{job['id']}/logs", params={"follow": "1"}) as stream:
        while (event := await stream.next())["event"] != "end":
            if event["event"] == "log":
                gap += event["data"]["gap"]
                seen += len(base64.b64decode(event["data"]["data"]))
    assert gap > 0
    assert seen + gap == 8 * len(piece)


async def test_a_loss_after_the_last_byte_is_told(served: Served, agent: FakeAgent) -> None:
    """FOLLOW-2: a stream whose end could not be read says at its end how much is missing."""
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    await push(served, agent, order.key, b"first\n", 0)
    await push(served, agent, order.key, b"", 1000, True)
    await push(served, agent, order.key, b"", 0, True, "stderr")
    await agent.end(order, exit_code=0)
    lines = []
    async with Stream(served, f"/v1/jobs/{job['id']}/logs", params={"follow": "1"}) as stream:
        while (event := await stream.next())["event"] != "end":
            if event["event"] == "log":
                lines.append((event["data"]["data"], event["data"]["gap"]))
    assert [gap for _, gap in lines] == [0, 994]
    assert lines[1][0] == ""


async def test_a_reader_that_comes_later_waits_for_no_bytes_again(
    served: Served, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FOLLOW-3: the time of its attempts' last bytes is over, and only the reader's clock stands
    still."""
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    await push(served, agent, order.key, b"first\n", 0, True)
    agent.incarnation = "incarnation-of-h1-2"
    await agent.register()
    second = await agent.take()
    await agent.sync(agent.running(second))
    await push(served, agent, second.key, b"again\n", 0, True)
    await agent.end(second, exit_code=0)
    await served.until(job["id"], "succeeded")

    later = await served.store.now() + timedelta(hours=1)
    frozen = served.controller.began_at + 3600

    async def now() -> datetime:
        return later

    monkeypatch.setattr(served.store, "now", now)
    monkeypatch.setattr(served.controller, "clock", lambda: frozen)
    for since, heard in (("1", [1, 2]), ("2", [2]), ("3", [])):
        found, query = [], {"follow": "1", "since": since}
        async with Stream(served, f"/v1/jobs/{job['id']}/logs", params=query) as stream:
            while (event := await stream.next())["event"] != "end":
                found += [event["data"]["attempt"]] if event["event"] == "log" else []
        assert found == heard


async def until_event(stream: Stream, kind: str) -> dict[str, Any]:
    while (event := await stream.next())["event"] != kind:
        pass
    found: dict[str, Any] = event["data"]
    return found


async def test_metrics(served: Served, agent: FakeAgent) -> None:
    await served.submit(queue="cpu")
    async with within(5):
        while 'holdfast_jobs{queue="cpu",state="reserved"} 1.0' not in (
            page := (await served.http.get("/metrics")).text
        ):
            await asyncio.sleep(0.02)
    for name in (
        "holdfast_hosts{state=",
        "holdfast_dead_hosts 0.0",
        "holdfast_busy_cpu_slots 1.0",
        "holdfast_loop_seconds",
        "holdfast_syncs_total",
        "holdfast_http_requests_total",
        "holdfast_oldest_transaction_seconds",
    ):
        assert name in page, name
    for host in ("attacker.example", "127.0.0.1.attacker.example:80", "attacker.example:7878", ""):
        named = await served.http.get("/metrics", headers={"Host": host})
        assert named.status_code == 401, f"a page in a browser here: {host}"
    for host in ("localhost", "127.0.0.1:7878", "[::1]:7878", "[::1]"):
        assert (await served.http.get("/metrics", headers={"Host": host})).status_code == 200
    proxied = await served.http.get("/metrics", headers={"X-Forwarded-For": "192.0.2.1"})
    assert proxied.status_code == 401


async def test_a_bug_is_told_without_its_traceback(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("the inner secret")

    monkeypatch.setattr(served.store.settings, "list_queues", broken)
    answer = await served.call("GET", "/v1/queues")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "inner secret" not in answer.text
    assert answer.json()["instance"].startswith("urn:holdfast:request:")


async def test_head_and_openapi(served: Served) -> None:
    assert (await served.call("HEAD", "/healthz", None)).status_code == 200
    page = (await served.call("GET", "/v1/openapi.json", "read")).json()
    assert page["openapi"] == "3.1.0"
    assert isinstance(httpx.URL(served.url).port, int)


async def test_a_wait_that_is_broken_off_below_is_a_503_and_not_a_bare_500(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def torn_down(job_id: str) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(served.store.jobs, "get_job", torn_down)
    answer = await served.call("GET", "/v1/jobs/0123456789abcdefghjk")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"]


def test_ids_sort_in_the_order_they_were_made_within_a_millisecond() -> None:
    made = [make_new_id() for _ in range(2000)]
    assert made == sorted(set(made))


async def test_what_a_shutdown_breaks_off_is_told_to_try_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = asyncio.Event()

    async def never(job_id: str) -> None:
        inside.set()
        await asyncio.Event().wait()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    monkeypatch.setattr(served.store.jobs, "get_job", never)
    path = "/v1/jobs/0123456789abcdefghjk"
    headers = [(b"authorization", f"Bearer {SECRETS['admin']}".encode())]
    scope = {
        "type": "http",
        "method": "GET",
        "raw_path": path.encode(),
        "path": path,
        "headers": headers,
        "query_string": b"",
        "client": ("127.0.0.1", 1),
    }
    call = asyncio.create_task(App(served.controller)(scope, receive, send))
    await inside.wait()
    monkeypatch.setattr(served.controller.wakes, "closing", True)
    call.cancel()
    await call
    assert sent[0]["status"] == 503
