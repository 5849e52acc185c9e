"""GraphQL over the real wire: every field against what REST says, paging, filters, errors, roles,
and no N+1."""

from __future__ import annotations

import asyncio
import collections
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from graphql import GraphQLObjectType, get_introspection_query, get_named_type, is_leaf_type

from holdfast.controller.graphql.endpoint import GraphqlRequest, Service, find_service
from holdfast.controller.graphql.limits import Limits
from holdfast.controller.graphql.reads import Reads
from holdfast.controller.graphql.schema import load_schema
from holdfast.controller.runtime.auth import make_new_id
from holdfast.controller.runtime.context import Controller
from holdfast.controller.server import RunningServer, bind_socket
from holdfast.core.records import (
    AttemptRecord,
    EventRecord,
    JobRecord,
    MemberRecord,
    ProjectRecord,
    QueueRecord,
    TaskRecord,
)
from holdfast.core.retry import RetryPolicy
from holdfast.errors import Unavailable
from holdfast.store.postgres.connection.leadership import PostgresLeadership
from holdfast.store.postgres.connection.parts import OnSession
from holdfast.store.postgres.store import PostgresStore
from holdfast.version import name_install
from holdfast.wire.api import ChainLink, HostView, RetryState, Why, WhyLine
from tests.reference.graphql import render_page
from tests.simulated.blobs import MemoryBlobs
from tests.store.rig import Rig, fails
from tests.unit.controller.conftest import SECRETS, FakeAgent, Served, bearer, gpu
from tests.unit.controller.graphql.rest import make_api
from tests.waits import within

SCHEMA = load_schema().core
PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "graphql-schema.md"
# A record's field → the schema's, where another thing has the plain name.
RENAMED = {
    "Job": {
        "queue": "queueName",
        "project": "projectName",
        "tasks": "taskCount",
        "attempts": "attemptCount",
    },
    "Attempt": {
        "host": "hostName",
        "parent": "parentNumber",
        "policy": "retryPolicy",
        "host_ids": "hosts",
    },
}
SHAPES = {
    "Job": JobRecord, "Attempt": AttemptRecord, "Task": TaskRecord, "Member": MemberRecord, "Host": HostView,
    "Queue": QueueRecord, "Project": ProjectRecord, "Event": EventRecord, "RetryPolicy": RetryPolicy,
    "RetryState": RetryState, "ChainLink": ChainLink, "Why": Why, "WhyLine": WhyLine,
}  # fmt: skip


def camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda m: m[1].upper(), name)


def snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda m: "_" + m[0].lower(), name)


def type_named(name: str) -> GraphQLObjectType:
    found = SCHEMA.type_map[name]
    assert isinstance(found, GraphQLObjectType)
    return found


def leaves(name: str) -> str:
    """Every field of a type that needs no selection."""
    return " ".join(
        n for n, f in type_named(name).fields.items() if is_leaf_type(get_named_type(f.type))
    )


async def post(
    served: Served, query: str, variables: Any = None, role: str | None = "read", **more: Any
) -> Any:
    body = {"query": query} | ({"variables": variables} if variables is not None else {}) | more
    return await served.call("POST", "/graphql", role, json=body)


async def ask(served: Served, query: str, variables: Any = None) -> dict[str, Any]:
    answer = await post(served, query, variables)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert "errors" not in body, body
    found: dict[str, Any] = body["data"]
    return found


async def refuse(served: Served, query: str, variables: Any = None, **more: Any) -> tuple[str, str]:
    answer = await post(served, query, variables, **more)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body.get("data") is None
    return body["errors"][0]["extensions"]["code"], body["errors"][0]["message"]


def like_rest(type_name: str, found: dict[str, Any]) -> dict[str, Any]:
    """What GraphQL said, under REST's names."""
    renamed = RENAMED.get(type_name, {})
    told = {snake(name): value for name, value in found.items() if name not in renamed}
    return told | {old: found[new] for old, new in renamed.items() if new in found}


def assert_same(
    type_name: str, found: dict[str, Any], rest: dict[str, Any], *, but: set[str] = frozenset()
) -> None:  # type: ignore[assignment]  # an empty one will do
    told = like_rest(type_name, found)
    shared = (told.keys() & rest.keys()) - but
    assert len(shared) >= 3
    assert {n: told[n] for n in shared} == {n: rest[n] for n in shared}


async def run_chain(served: Served, agent: FakeAgent) -> tuple[str, Any]:
    """A job of two failed attempts and a third that runs."""
    job = await served.submit(
        name="train",
        labels={"team": "a"},
        secrets={"TOKEN": "hush-hush-hush"},
        project="vision",
        retry={"max_retries": 3, "retry_delay": 0.0},
    )
    for code in (3, 4):
        order = await agent.take()
        await agent.sync(agent.running(order))
        await agent.end(order, exit_code=code)
    order = await agent.take()
    await agent.sync(agent.running(order))
    await served.until(job["id"], "running")
    return job["id"], order


# ---- the schema


def test_the_page_is_of_today() -> None:
    assert PAGE.read_text() == render_page(), "python -m tests.reference.graphql"


@pytest.mark.parametrize("name", SHAPES)
def test_the_schema_mirrors_the_records(name: str) -> None:
    fields = type_named(name).fields
    left_out = {"Why": {"job_id", "forecast", "would_start"}, "Host": {"models"}}.get(name, set())
    wanted = {
        RENAMED.get(name, {}).get(f, camel(f))
        for f in SHAPES[name].__struct_fields__
        if f not in left_out
    }
    assert wanted - fields.keys() == set()


def test_it_is_not_loaded_before_it_is_asked() -> None:
    code = "import sys, holdfast.controller.server; print({'strawberry', 'graphql'} & set(sys.modules))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "set()\n"
    )


def test_without_the_extra_it_says_what_to_install() -> None:
    code = """
import sys; sys.modules["strawberry"] = None
import asyncio
from holdfast.controller.runtime.context import Controller
from holdfast.controller.graphql.endpoint import NotInstalled, find_service
from tests.simulated.blobs import MemoryBlobs
from holdfast.store.postgres.store import PostgresStore
from tests.simulated.blobs import MemoryBlobs
try:
    asyncio.run(find_service(Controller(PostgresStore(""), blobs=MemoryBlobs())))
except NotInstalled as error:
    print(error.status, error.code, error.message)
"""
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith("501 graphql_not_installed ")
    assert name_install("server", "graphql") in said


# ---- what it says, beside what REST says


async def test_a_job_says_what_rest_says(served: Served, agent: FakeAgent) -> None:
    job_id, _ = await run_chain(served, agent)
    query = f"""query($id: ID!) {{ job(id: $id) {{ {leaves("Job")}
        queue {{ {leaves("Queue")} }} project {{ {leaves("Project")} }}
        retryPolicy {{ {leaves("RetryPolicy")} }} retryState {{ {leaves("RetryState")} }}
        retryChain {{ {leaves("ChainLink")} }} events(last: 99) {{ {leaves("Event")} }}
        why {{ state summary lines {{ {leaves("WhyLine")} }} }}
        tasks {{ {leaves("Task")} host {{ {leaves("Host")} gpus {{ {leaves("Gpu")} }} }} }}
        attempts {{ {leaves("Attempt")} members {{ {leaves("Member")} }} hosts {{ id }} job {{ id }}
          retryPolicy {{ {leaves("RetryPolicy")} }} parent {{ number cause }} tasks {{ rank state }} }}
    }} }}"""
    before = why = None
    while before is None or why != before:  # its words count seconds, which pass between two reads
        before = (await served.call("GET", f"/v1/jobs/{job_id}/why")).json()
        found = (await ask(served, query, {"id": job_id}))["job"]
        why = (await served.call("GET", f"/v1/jobs/{job_id}/why")).json()
    rest = await served.job(job_id)
    assert_same("Job", found, rest, but={"beat_at", "retry_policy", "retry_state", "retry_chain"})
    assert found["retryCount"] == 2
    assert found["maxRetries"] == 3
    assert found["retryCause"] == "nonzero_exit"
    policy = (await served.call("GET", f"/v1/jobs/{job_id}/policy")).json()["policy"]
    assert {snake(k): v for k, v in found["retryPolicy"].items()} == policy == rest["retry_policy"]
    assert {snake(k): v for k, v in found["retryState"].items()} == rest["retry_state"]
    assert [{snake(k): v for k, v in link.items()} for link in found["retryChain"]] == rest[
        "retry_chain"
    ]
    assert found["why"] == {k: why[k] for k in ("state", "summary", "lines")}
    assert_same("Queue", found["queue"], (await served.call("GET", "/v1/queues/cpu")).json())
    assert_same(
        "Project", found["project"], (await served.call("GET", "/v1/projects/vision")).json()
    )
    events = (await served.call("GET", "/v1/events", params={"job": job_id, "tail": 99})).json()[
        "items"
    ]
    assert len(found["events"]) == len(events) > 5
    for event, rest_event in zip(found["events"], events, strict=True):
        assert_same("Event", event, rest_event)
    await assert_runs_are_same(served, job_id, found)


async def assert_runs_are_same(served: Served, job_id: str, found: dict[str, Any]) -> None:
    (task,) = (await served.call("GET", f"/v1/jobs/{job_id}/tasks")).json()["items"]
    assert_same("Task", found["tasks"][0], task)
    assert_same(
        "Host",
        found["tasks"][0]["host"],
        (await served.call("GET", "/v1/hosts/h1")).json(),
        but={"heartbeat_at"},
    )
    attempts = (await served.call("GET", f"/v1/jobs/{job_id}/attempts")).json()["items"]
    assert [a["number"] for a in found["attempts"]] == [1, 2, 3]
    for attempt, rest in zip(found["attempts"], attempts, strict=True):
        assert_same("Attempt", attempt, rest, but={"policy", "host_ids", "members", "parent"})
        assert attempt["parentNumber"] == rest["parent"]
        policy = attempt["retryPolicy"]
        assert (None if policy is None else {snake(k): v for k, v in policy.items()}) == rest[
            "policy"
        ]
        assert [h["id"] for h in attempt["hosts"]] == rest["host_ids"]
        assert attempt["job"] == {"id": job_id}
        for member, rest_member in zip(attempt["members"], rest["members"], strict=True):
            assert_same("Member", member, rest_member)
    assert [a["parent"] for a in found["attempts"]] == [
        None,
        {"number": 1, "cause": "nonzero_exit"},
        {"number": 2, "cause": "nonzero_exit"},
    ]
    assert [a["retryCause"] for a in found["attempts"]] == [None, "nonzero_exit", "nonzero_exit"]
    assert [a["tasks"] for a in found["attempts"]] == [[], [], [{"rank": 0, "state": "running"}]]


async def test_an_ended_job_and_its_retries(served: Served, agent: FakeAgent) -> None:
    job_id, order = await run_chain(served, agent)
    await agent.end(order, exit_code=0)
    await served.until(job_id, "succeeded")
    query = "query($id: ID!) { job(id: $id) { state outcome retryCount maxRetries retryCause retryState { sentence } "
    query += "attempt(number: 2) { exitCode } } }"
    found = (await ask(served, query, {"id": job_id}))["job"]
    assert found == {
        "state": "succeeded",
        "outcome": "succeeded",
        "retryCount": 2,
        "maxRetries": 3,
        "retryCause": "nonzero_exit",
        "retryState": {"sentence": (await served.job(job_id))["retry_state"]["sentence"]},
        "attempt": {"exitCode": 4},
    }
    attempts = "query($id: ID!) { job(id: $id) { attempts(last: 1, before: 3) { number } none: attempts(cause: oom_killed) { number } } }"
    found = (await ask(served, attempts, {"id": job_id}))["job"]
    assert found == {"attempts": [{"number": 2}], "none": []}


async def test_a_job_that_backs_off(served: Served, agent: FakeAgent) -> None:
    job = await served.submit(retry={"max_retries": 2, "retry_delay": 600})
    await agent.end(await agent.take(), exit_code=9)
    await served.until(job["id"], "waiting")
    found = (
        await ask(
            served,
            f'{{ job(id: "{job["id"]}") {{ retryCount retryCause retryState {{ attempt of nextAt '
            f"}} waitCause }} }}",
        )
    )["job"]
    assert (found["retryCount"], found["retryCause"], found["waitCause"]) == (
        1,
        "nonzero_exit",
        "back_off",
    )
    assert (found["retryState"]["attempt"], found["retryState"]["of"]) == (1, 3)
    assert found["retryState"]["nextAt"] == (await served.job(job["id"]))["retry_at"]


async def test_secrets_are_nowhere(served: Served, agent: FakeAgent) -> None:
    job_id, _ = await run_chain(served, agent)
    query = f'{{ job(id: "{job_id}") {{ {leaves("Job")} events(last: 99) {{ {leaves("Event")} }} tasks {{ {leaves("Task")} }} }} }}'
    text = (await post(served, query, role="admin")).text
    assert '"secrets":{"TOKEN":""}' in text
    assert "hush-hush-hush" not in text
    fields = [
        n
        for t in SCHEMA.type_map.values()
        if isinstance(t, GraphQLObjectType) and not t.name.startswith("__")
        for n in t.fields
    ]
    told = [n for n in fields if "secret" in n.lower() or "hash" in n.lower() or n == "key"]
    assert told == [
        "oldSecretUntil"
    ]  # a time; REST shows tokens and webhooks without their secrets


# ---- lists


async def test_jobs_by_the_page(served: Served) -> None:
    ids = [(await served.submit(name=f"j{n}"))["id"] for n in range(5)]
    query = "query($first: Int!, $after: String) { jobs(first: $first, after: $after) { nodes { id } next } }"
    seen, cursor = [], None
    for _ in range(3):
        page = (await ask(served, query, {"first": 2, "after": cursor}))["jobs"]
        seen += [node["id"] for node in page["nodes"]]
        cursor = page["next"]
    assert cursor is None
    assert seen == sorted(ids, reverse=True)
    bad = await post(served, query, {"first": 2, "after": "bm9uZQ"})
    assert (bad.json()["data"], bad.json()["errors"][0]["extensions"]["code"]) == (
        {"jobs": None},
        "validation_error",
    )


async def test_filters_are_those_of_rest(served: Served, agent: FakeAgent) -> None:
    await run_chain(served, agent)
    first = await served.submit(project="audio", name="other", labels={"team": "b", "x": "y"})
    await served.until(first["id"], "reserved")  # no job moves between two readings
    await served.submit(queue="gpu", gpus=0, start_at=4e9)
    filters = [
        {"state": ["running"]}, {"state": ["queued", "waiting"]}, {"queue": "gpu"}, {"project": "audio"}, {"name": "train"},
        {"prefix": first["id"][:19]}, {"prefix": "zzzz"},
        {"label": ["team=b", "x=y"]}, {"label": ["team=a"]}, {"retriesMin": 1}, {"retriesMax": 1}, {"host": "h1"},
        {"cause": "oom_killed"}, {"cause": "nonzero_exit"}, {},
    ]  # fmt: skip
    query = """query($state: [JobState!], $queue: String, $project: String, $name: String, $prefix: String, $label: [String!], $cause: Cause,
      $retriesMin: Int, $retriesMax: Int, $host: String) { jobs(state: $state, queue: $queue, project: $project, name: $name, prefix: $prefix,
      label: $label, cause: $cause, retriesMin: $retriesMin, retriesMax: $retriesMax, host: $host) { nodes { id } } }"""
    counts = set()
    for given in filters:
        params = {snake(name): value for name, value in given.items()}
        rest = [
            job["id"]
            for job in (await served.call("GET", "/v1/jobs", params=params)).json()["items"]
        ]
        found = [job["id"] for job in (await ask(served, query, given))["jobs"]["nodes"]]
        assert found == rest, given
        counts.add(len(rest))
    assert counts >= {0, 1, 2, 3}
    for given, field in (({"label": ["nonsense"]}, "label"), ({"retriesMin": -1}, "retriesMin")):
        error = (await post(served, query, given)).json()["errors"][0]
        assert error["extensions"]["code"] == "validation_error", error
        assert error["extensions"]["field"].startswith(field)
    nul = (await post(served, '{ jobs(name: "a\\u0000b") { next } }')).json()["errors"][0]
    assert nul["extensions"] == {"code": "validation_error", "field": "name"}
    assert (await post(served, query, {"host": "nobody"})).json()["errors"][0]["extensions"][
        "code"
    ] == "not_found"


async def test_hosts_queues_and_projects_by_the_page(served: Served) -> None:
    for name in ("a", "b", "c"):
        await FakeAgent(served, name, gpus=[gpu(0), gpu(1)]).register()
        await served.call("PUT", f"/v1/projects/{name}", json={"set": {"quota_jobs": 2}})
    for kind, path in (
        ("hosts", "/v1/hosts"),
        ("queues", "/v1/queues"),
        ("projects", "/v1/projects"),
    ):
        rest = [item["name"] for item in (await served.call("GET", path)).json()["items"]]
        seen, cursor = [], None
        while True:
            query = f"query($after: String) {{ {kind}(first: 2, after: $after) {{ nodes {{ name }} next }} }}"
            page = (await ask(served, query, {"after": cursor}))[kind]
            seen += [node["name"] for node in page["nodes"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert seen == sorted(rest)
        assert len(seen) >= 2
    one = await ask(
        served,
        '{ host(host: "b") { name gpus(first: 1) { index } slots dead } queue(name: "cpu") { name '
        '} project(name: "new") { name settings } }',
    )
    assert one["host"] == {
        "name": "b",
        "gpus": [{"index": 0}],
        "slots": {"cpu": {"total": 4, "busy": 0}, "gpu": {"total": 2, "busy": 0}},
        "dead": False,
    }
    assert (one["queue"]["name"], one["project"]) == ("cpu", {"name": "new", "settings": {}})
    await served.call("POST", "/v1/hosts/c/terminate")
    found = await ask(
        served,
        "{ hosts { nodes { name } } all: hosts(all: true) { nodes { name state } } dead: "
        "hosts(dead: true) { nodes { name } } }",
    )
    assert [n["name"] for n in found["hosts"]["nodes"]] == ["a", "b"]
    assert found["all"]["nodes"][-1] == {"name": "c", "state": "terminated"}
    assert found["dead"]["nodes"] == []


async def test_events_by_the_page(served: Served, agent: FakeAgent) -> None:
    job_id, _ = await run_chain(served, agent)
    rest = (await served.call("GET", "/v1/events", params={"kind": "job.*"})).json()["items"]
    seen, cursor = [], None
    while True:
        query = 'query($after: String) { events(first: 4, after: $after, kind: ["job.*"]) { nodes { id kind } next } }'
        page = (await ask(served, query, {"after": cursor}))["events"]
        seen += page["nodes"]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [{"id": e["id"], "kind": e["kind"]} for e in rest]
    found = await ask(
        served, f'{{ lastEvents(last: 3, job: "{job_id}") {{ kind jobId host {{ name }} }} }}'
    )
    assert [e["kind"] for e in found["lastEvents"]] == [e["kind"] for e in rest[-3:]]
    registered = await ask(served, '{ lastEvents(kind: ["host.registered"]) { host { name } } }')
    assert registered["lastEvents"] == [{"host": {"name": "h1"}}]
    bad = (await post(served, '{ events(after: "zzz") { next } }')).json()
    assert (bad["data"]["events"], bad["errors"][0]["extensions"]) == (
        None,
        {"code": "validation_error", "field": "after"},
    )


# ---- what goes wrong


async def test_what_nobody_has_is_null_with_a_code(served: Served) -> None:
    job = await served.submit()
    query = f'''{{ a: job(id: "{"0" * 20}") {{ id }} b: job(id: "?") {{ id }} c: queue(name: "q") {{ name }} d: host(host: "h") {{ name }}
      e: project(name: " ") {{ name }} f: job(id: "{job["id"]}") {{ id attempt(number: 7) {{ number }} }} }}'''
    body = (await post(served, query)).json()
    assert body["data"] == {**dict.fromkeys("abcde"), "f": {"id": job["id"], "attempt": None}}
    assert sorted((e["path"][0], e["extensions"]["code"]) for e in body["errors"]) == [
        (n, "not_found") for n in "abcde"
    ]


async def test_what_rest_reads_has_a_root_field_of_its_own(served: Served) -> None:
    """By its operation alone: with REST's words, arguments, pages and refusals."""
    for name in ("a", "b", "c"):
        job = {"argv": ["/bin/true"]}
        spec = {"job": job, "every_seconds": 3600, "catch_up": "none"}
        answer = await served.call("PUT", f"/v1/schedules/{name}", json=spec)
        assert answer.status_code == 200, answer.text
    found = await ask(
        served,
        """{ schedules(first: 2) { next nodes { name owner nextAt spec } }
        rest: schedules(first: 2, after: "2") { next nodes { name } }
        schedule(name: "b") { name project }
        scheduleRuns(name: "b", first: 1) { nodes { outcome } }
        scheduleNext(name: "b", count: 2) { times }
        pools { nodes { name } } callSets { nodes { id } } workflows { nodes { id } }
        whoami { role } server { version } sessions { nodes { id } } }""",
    )
    rest = (await served.call("GET", "/v1/schedules/a")).json()
    first = found["schedules"]["nodes"][0]
    assert (first["nextAt"], first["spec"]) == (rest["next_at"], rest["spec"])
    assert [each["name"] for each in found["schedules"]["nodes"]] == ["a", "b"]
    assert found["rest"] == {"next": None, "nodes": [{"name": "c"}]}
    assert found["schedule"] == {"name": "b", "project": "default"}
    assert found["scheduleRuns"] == {"nodes": []}
    assert len(found["scheduleNext"]["times"]) == 2
    missing = (await post(served, '{ schedule(name: "none") { name } }')).json()
    assert missing["data"] == {"schedule": None}
    assert missing["errors"][0]["extensions"]["code"] == "not_found"
    query = "{ webhooks { nodes { id } } }"
    admins = (await post(served, query, role="admin")).json()
    assert admins == {"data": {"webhooks": {"nodes": []}}}
    readers = (await post(served, query, role="read")).json()
    assert readers["errors"][0]["extensions"]["code"] == "forbidden"


async def test_who_may_ask(served: Served) -> None:
    for role in ("read", "submit", "admin"):
        assert (await post(served, "{ __typename }", role=role)).json() == {
            "data": {"__typename": "Query"}
        }
    for headers in ({}, bearer("hft_wrong"), {"Authorization": "Basic eDp5"}):
        answer = await served.call(
            "POST", "/graphql", None, headers=headers, json={"query": "{ __typename }"}
        )
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    join = await served.call(
        "POST", "/graphql", None, headers=bearer(SECRETS["join"]), json={"query": "{ __typename }"}
    )
    assert (join.status_code, join.json()["code"]) == (401, "join_token")
    agent = FakeAgent(served)
    await agent.register()
    answer = await served.call(
        "POST", "/graphql", None, headers=bearer(agent.key), json={"query": "{ __typename }"}
    )
    assert answer.status_code == 401


async def test_a_query_is_posted_as_json(served: Served) -> None:
    got = await served.call("GET", "/graphql", "read", params={"query": "{ __typename }"})
    assert (got.status_code, got.headers["allow"]) == (405, "POST")
    form = await served.call("POST", "/graphql", "read", data={"query": "{ __typename }"})
    assert (form.status_code, form.json()["code"]) == (415, "unsupported_media_type")
    for body, status, code in (
        (b"", 400, "malformed_json"),
        (b"{", 400, "malformed_json"),
        (b"\xff", 400, "malformed_json"),
        (b'[{"query": "{ __typename }"}]', 422, "batch_refused"),
        (b"{}", 422, "validation_error"),
        (b'{"query": 1}', 422, "validation_error"),
        (b'{"query": "{a}", "variables": []}', 422, "validation_error"),
        (b'{"query": "{a}", "hash": "x"}', 422, "validation_error"),
        (
            b'{"query": "", "extensions": {"persistedQuery": {"version": 1}}}',
            422,
            "persisted_query_not_supported",
        ),
        (b'{"query": "' + b" " * (Limits().body_bytes) + b'"}', 413, "too_large"),
        (
            b'{"query": "{a}", "variables": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}",
            400,
            "malformed_json",
        ),
    ):
        answer = await served.call(
            "POST", "/graphql", "read", content=body, headers={"Content-Type": "application/json"}
        )
        assert (answer.status_code, answer.json()["code"]) == (status, code), body[:60]
        assert answer.headers["content-type"] == "application/problem+json"


async def test_only_queries_are_taken(served: Served) -> None:
    for query in ('mutation { cancel(id: "x") { id } }', "subscription { events { id } }"):
        code, message = await refuse(served, query)
        assert code == "query_only"
        assert "REST" in message
    assert (await refuse(served, "query A { __typename } mutation B { x }", operationName="B"))[
        0
    ] == "query_only"
    assert (await refuse(served, "query A { __typename } query B { __typename }"))[
        0
    ] == "unknown_operation"
    assert (await refuse(served, "query A { __typename }", operationName="C"))[
        0
    ] == "unknown_operation"
    assert (
        await post(served, "query A { __typename } query B { b: __typename }", operationName="B")
    ).json()["data"] == {"b": "Query"}


async def test_bad_queries_say_where(served: Served) -> None:
    error = (await post(served, "{ jobs {")).json()["errors"][0]
    assert (error["extensions"]["code"], error["locations"][0]["line"]) == ("graphql_syntax", 1)
    for query in (
        "{ nothing }",
        "{ jobs }",
        "{ jobs { nodes { id { x } } } }",
        "{ job { id } }",
        "{ ...F }",
        "{ jobs(first: true) { next } }",
        "query($n: Int!) { jobs(first: $n) { next } }",
        "fragment A on Query { ...A } { ...A }",
        "{ jobs(state: [RUNNING]) { next } }",
        "{ __typename @stream }",
        "query($x: Nope) { __typename }",
        "fragment A on Job { id } { __typename }",
    ):
        code, message = await refuse(served, query)
        assert code == "graphql_validation", (query, message)
    assert "Did you mean 'job' or 'jobs'" in (await refuse(served, "{ jobz { next } }"))[1]
    assert (await refuse(served, "query($n: Int!) { jobs(first: $n) { next } }", {"n": "many"}))[
        0
    ] == "graphql_validation"


async def test_the_media_type_of_graphql(served: Served) -> None:
    accept = {"Accept": "application/graphql-response+json, application/json;q=0.9"}
    for query, status in (
        ("{ __typename }", 200),
        ("{ nothing }", 400),
        ('{ job(id: "?") { id } }', 200),
        ("{", 400),
    ):
        answer = await served.call(
            "POST", "/graphql", "read", json={"query": query}, headers=accept
        )
        assert (answer.status_code, answer.headers["content-type"]) == (
            status,
            "application/graphql-response+json; charset=utf-8",
        )
        assert ("data" in answer.json()) == (status == 200)


LIMITED = [
    ('{ job(id: "x") { attempt(number: 1) ' + "{ parent " * 10 + "{ number }" + " }" * 12, "query_too_deep"),
    ("{ a" * 400 + "}" * 400, "query_too_deep"),
    ("{ a(x: " + "[" * 1200 + "]" * 1200 + ") }", "query_too_deep"),
    ("{ " + " ".join(f"a{n}: __typename" for n in range(700)) + " }", "query_too_wide"),
    ("{ " + "__typename " * 700 + "}", "query_too_wide"),
    ("{ " + " ".join(f"a{n}: jobs(first: 400) {{ nodes {{ id }} }}" for n in range(20)) + " }", "query_too_costly"),
    ("{ jobs(first: 500) { nodes { attempts(last: 500) { number } } } }", "query_too_costly"),
    ("{ jobs(first: 200) { nodes { why { summary } } } }", "query_too_costly"),
    ("{ jobs(first: 501) { next } }", "page_out_of_bounds"),
    ("{ jobs(first: 0) { next } }", "page_out_of_bounds"),
    ("{ jobs(first: -1) { next } }", "page_out_of_bounds"),
    ("{ jobs(first: 99999999999999999999) { next } }", "page_out_of_bounds"),
    ("query($n: Int = 501) { jobs(first: $n) { next } }", "page_out_of_bounds"),
    ("{ " + " a: __typename # comment \n" * 1200 + "}", "query_too_long"),
    ("{ __schema { types { fields { type { fields { name } } } } } }", "query_too_deep"),
    ("{ " + " ".join(f"a{n}: __schema {{ types {{ fields {{ args {{ name }} name type {{ name }} }} }} }}" for n in range(20)) + " }",
     "query_too_costly"),
    # A bomb: forty fragments, each spread twice in the one before, and nothing at the end of them.
    ("{ ...F0 } " + " ".join(f"fragment F{n} on Query {{ ...F{n + 1} ...F{n + 1} }}" for n in range(40)), "query_too_wide"),
    ("{ ...A } fragment A on Query { " + "...B " * 100 + "} fragment B on Query { " + "...C " * 100 + "} fragment C on Query { __typename }",
     "query_too_wide"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "code"), LIMITED, ids=lambda v: v[:60])
async def test_what_asks_for_too_much_is_refused(served: Served, query: str, code: str) -> None:
    found, message = await refuse(served, query)
    assert found == code, message


async def test_sizes_in_variables_count(served: Served) -> None:
    query = "query($a: Int!, $b: Int = 500) { jobs(first: $a) { nodes { attempts(last: $b) { number } } } }"
    assert (await refuse(served, query, {"a": 100}))[0] == "query_too_costly"
    assert (await refuse(served, query, {"a": 900, "b": 1}))[0] == "page_out_of_bounds"
    assert (await ask(served, query, {"a": 100, "b": 3}))["jobs"] == {"nodes": []}


async def test_introspection_is_answered_within_the_limits(served: Served) -> None:
    for more in (
        {},
        {
            "specified_by_url": True,
            "directive_is_repeatable": True,
            "input_value_deprecation": True,
        },
    ):
        found = await ask(served, get_introspection_query(**more))
        assert {t["name"] for t in found["__schema"]["types"]} >= {"Job", "Attempt", "Host"}
    one = await ask(
        served,
        '{ __type(name: "Job") { fields { name args { name type { name ofType { name } } } } } }',
    )
    assert len(one["__type"]["fields"]) > 50


# ---- what it costs the store


class Counting:
    """A store that counts its calls, and may be told to misbehave in one of them."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.calls: collections.Counter[str] = collections.Counter()
        self.at_once = self.most_at_once = 0
        self.instead: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if isinstance(found, OnSession | PostgresLeadership):
            return CountingPort(self, found)
        return self.count(name, found)

    def count(self, name: str, found: Any) -> Any:
        if not asyncio.iscoroutinefunction(found):
            return found

        async def counted(*args: Any, **more: Any) -> Any:
            self.calls[name] += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                await asyncio.sleep(0)
                return await self.instead.get(name, found)(*args, **more)
            finally:
                self.at_once -= 1

        return counted


class CountingPort:
    """A port of a store that counts its calls."""

    def __init__(self, counting: Counting, port: Any) -> None:
        self.counting, self.port = counting, port

    def __getattr__(self, name: str) -> Any:
        return self.counting.count(name, getattr(self.port, name))


class ServiceOver(Service):
    """A service over a store, which an admin asks."""

    def __init__(self, store: Any, limits: Limits | None = None) -> None:
        self.controller = Controller(store, blobs=MemoryBlobs())
        super().__init__(self.controller, load_schema(), limits or Limits())

    async def ask(self, query: str) -> Any:
        return await self.answer(GraphqlRequest(query=query), make_api(self.controller))


def service_over(store: Any, limits: Limits | None = None) -> ServiceOver:
    return ServiceOver(store, limits)


async def fill(store: PostgresStore, jobs: int) -> None:
    """Jobs that failed twice and are reserved a third time: three attempts and a task each."""
    rig = Rig(store)
    await rig.host(slots=10 * jobs)
    for _ in range(jobs):
        await rig.submit(make_new_id(), project="p")
    for _ in range(2):
        ids = await rig.admit(limit=jobs)
        assert len(ids) == jobs
        keys = [
            task.key
            for tasks in (await store.jobs.list_tasks_of(ids, first=9)).values()
            for task in tasks
        ]
        await rig.sync()
        await rig.sync(live=keys, started=keys)
        await rig.sync(ended=[(key, fails()) for key in keys])
        assert len(await rig.complete(max_retries=9)) == jobs
        await rig.release()
    assert len(await rig.admit(limit=jobs)) == jobs


WIDE = """{ jobs(first: 100) { nodes { id retryCount retryCause maxRetries queue { name } project { name }
  retryState { sentence } retryChain(last: 3) { number }
  attempts(last: 3) { number retryCause parent { number parent { number } } hosts { name } members { rank } job { id }
    tasks(first: 2) { rank host { name } } }
  tasks(first: 2) { rank host { name queues } } events(last: 3) { kind host { name } } } } }"""


async def test_a_hundred_jobs_cost_as_many_calls_as_ten(store: PostgresStore) -> None:
    """No N+1: jobs × attempts × tasks × hosts, with parents, chains and events."""
    counts = []
    for jobs in (10, 90):
        await fill(store, jobs)
        counting = Counting(store)
        answer = await service_over(counting, Limits(cost=10**9, seconds=60)).ask(WIDE)
        assert "errors" not in answer, answer["errors"][:1]
        nodes = answer["data"]["jobs"]["nodes"]
        assert len(nodes) == (10 if jobs == 10 else 100)
        assert all([a["number"] for a in n["attempts"]] == [1, 2, 3] for n in nodes)
        assert all(
            n["attempts"][2]["parent"] == {"number": 2, "parent": {"number": 1}} for n in nodes
        )
        assert all(n["tasks"][0]["host"]["name"] == "name-h1" for n in nodes)
        assert all(n["attempts"][2]["tasks"][0]["rank"] == 0 for n in nodes)
        counts.append(dict(counting.calls))
        assert counting.most_at_once <= Limits().calls_at_once
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) <= 20, counts[0]
    assert (
        not {"list_attempts", "list_tasks", "get_job", "get_host", "get_queue", "get_project"}
        & counts[0].keys()
    )


async def test_why_of_many_jobs_costs_as_many_calls_as_one(store: PostgresStore) -> None:
    rig, counts = Rig(store), []
    for jobs in (1, 20):
        for _ in range(jobs):
            await rig.submit(make_new_id())
        counting = Counting(store)
        query = "{ jobs(first: 40) { nodes { why { summary lines { code } } } } }"
        answer = await service_over(counting).ask(query)
        lines = [
            line["code"]
            for node in answer["data"]["jobs"]["nodes"]
            for line in node["why"]["lines"]
        ]
        assert lines.count("no_hosts") == (1 if jobs == 1 else 21)
        counts.append(dict(counting.calls))
    assert counts[0] == counts[1]


class QueryTime:
    """The time that queries have, which is over when a test says so, on any machine."""

    seconds = 86_399.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun: list[asyncio.Timeout] = []
        self._make = asyncio.timeout
        monkeypatch.setattr(asyncio, "timeout", self._begin)

    def _begin(self, seconds: float | None) -> asyncio.Timeout:
        made = self._make(seconds)
        if seconds == self.seconds:
            self._begun.append(made)
        return made

    def end(self) -> None:
        for limit in self._begun:
            limit.reschedule(asyncio.get_running_loop().time())


async def test_a_slow_store_is_given_up_and_left_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, time = Counting(served.store), QueryTime(monkeypatch)
    gone = asyncio.Event()

    async def hang(*args: Any, **more: Any) -> Any:
        time.end()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    counting.instead["list_jobs"] = hang
    service = service_over(counting, Limits(seconds=time.seconds))
    query = "{ " + " ".join(f"a{n}: jobs {{ nodes {{ id }} }}" for n in range(6)) + " }"
    answer = await service.ask(query)
    assert answer["data"] is None
    assert answer["errors"][0]["extensions"]["code"] == "query_timeout"
    async with within(5):
        await gone.wait()
        while counting.at_once:
            await asyncio.sleep(0.01)
    assert counting.calls["list_jobs"] <= Limits().calls_at_once


async def test_nothing_is_read_for_a_query_that_was_given_up(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GQL-3: what waits for its turn when the time is up is dropped, though loaders run beside the
    query itself."""
    await fill(store, 2)
    counting, open_, time = Counting(store), asyncio.Event(), QueryTime(monkeypatch)

    async def wait(*args: Any, **more: Any) -> Any:
        if counting.calls["list_attempts_of"] == Limits().calls_at_once:
            time.end()
        await open_.wait()
        return {}

    counting.instead["list_attempts_of"] = wait
    query = (
        "{ jobs { nodes { "
        + " ".join(f"a{n}: attempts(last: {n + 1}) {{ number }}" for n in range(6))
        + " } } }"
    )
    answer = await service_over(counting, Limits(seconds=time.seconds)).ask(query)
    assert answer["errors"][0]["extensions"]["code"] == "query_timeout"
    assert counting.calls["list_attempts_of"] == Limits().calls_at_once
    open_.set()
    async with within(5):
        while counting.at_once:
            await asyncio.sleep(0.01)
    for _ in range(50):
        await asyncio.sleep(0)
    assert counting.calls["list_attempts_of"] == Limits().calls_at_once


async def test_a_closed_reader_calls_nothing(store: PostgresStore) -> None:
    counting = Counting(store)
    reads = Reads(
        Controller(counting, blobs=MemoryBlobs()),
        make_api(Controller(store, blobs=MemoryBlobs())),
        1,
        1,
    )  # type: ignore[arg-type]  # it is one by __getattr__
    reads.close()
    with pytest.raises(asyncio.CancelledError):
        await reads.call(counting.settings.list_queues)
    assert not counting.calls


async def test_few_queries_are_worked_on_at_once(store: PostgresStore) -> None:
    counting = Counting(store)
    open_, going = asyncio.Event(), 0

    async def wait(*args: Any, **more: Any) -> Any:
        nonlocal going
        going += 1
        await open_.wait()
        return []

    counting.instead["list_queues"] = wait
    service = service_over(counting, Limits(at_once=2))
    asked = [asyncio.create_task(service.ask("{ queues { next } }")) for _ in range(6)]
    async with within(5):
        while going < 2:
            await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert going == 2
    open_.set()
    assert [a["data"] for a in await asyncio.gather(*asked)] == [{"queues": {"next": None}}] * 6


@pytest.fixture
async def shaky(store: PostgresStore) -> AsyncIterator[tuple[Served, Counting]]:
    counting = Counting(store)
    running = RunningServer(counting, bind_socket("127.0.0.1", 0), blobs=MemoryBlobs())  # type: ignore[arg-type]  # it is one by __getattr__
    await running.start()
    served = Served(running, store)
    yield served, counting
    await served.http.aclose()
    await running.stop()


async def test_bugs_and_outages_are_told_apart(
    shaky: tuple[Served, Counting], caplog: pytest.LogCaptureFixture
) -> None:
    served, counting = shaky

    async def break_(*args: Any, **more: Any) -> Any:
        raise RuntimeError("password=hunter2")

    async def be_away(*args: Any, **more: Any) -> Any:
        raise Unavailable("the database is away")

    counting.instead.update(list_jobs=break_, list_events_of=be_away)
    job = await served.submit()
    query = f'{{ jobs {{ next }} job(id: "{job["id"]}") {{ id }} one: job(id: "{job["id"]}") {{ events {{ id }} }} }}'
    answer = await post(served, query)
    assert answer.json()["data"] == {"jobs": None, "job": {"id": job["id"]}, "one": None}
    codes = {e["path"][0]: (e["extensions"]["code"], e["message"]) for e in answer.json()["errors"]}
    assert codes["jobs"][0] == "internal"
    assert codes["one"] == ("unavailable", "the database is away")
    assert "hunter2" not in answer.text
    number = codes["jobs"][1].rsplit(" ", 1)[-1]
    (record,) = [r for r in caplog.records if getattr(r, "request", None) == number]
    assert "hunter2" in str(record.exc_info)


async def test_large_answers_are_refused(served: Served) -> None:
    await served.submit(argv=["/bin/echo", "x" * 100_000])
    await find_service(served.controller, Limits(answer_bytes=1_000_000))
    for copies, code in ((5, None), (20, "too_large")):
        text = (
            "{ jobs(first: 1) { nodes { "
            + " ".join(f"s{n}: spec" for n in range(copies))
            + " } } }"
        )
        body = (await post(served, text)).json()
        assert ([e["extensions"]["code"] for e in body.get("errors", [])][:1] or [None]) == [code]
