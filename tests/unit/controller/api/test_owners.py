"""OWNER-1: work belongs to the user of the token that submitted it, and others do not change it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from holdfast.controller.routes import ENDPOINTS
from holdfast.controller.runtime.auth import make_new_id
from holdfast.wire.operations.operation import Role
from tests.unit.controller.conftest import Served, bearer

# What a path without work of a user in it may take from a submit token.
# Targets of notices and sessions are judged by their own routes, because a target belongs to a
# project or to the cluster, and a session to its user and to the owner of its job.
FREE = {"/v1/values/{sha256}", "/v1/notices/{name}", "/v1/notices/{name}/test", "/v1/sessions/{id}"}
TRUE = {"argv": ["/bin/true"]}


def test_each_route_that_changes_somebodys_work_names_it() -> None:
    changing = [
        e
        for e in ENDPOINTS
        if e.role is Role.SUBMIT and "{" in e.path and e.path not in FREE and e.method != "GET"
    ]
    assert len(changing) > 15
    assert [e.path for e in changing if e.owned is None] == []
    kinds = {e.path.split("/")[2]: e.owned for e in changing}
    assert kinds == {
        "jobs": "job", "arrays": "array", "call-sets": "set", "workflows": "run",
        "schedules": "schedule",
    }  # fmt: skip


class People:
    """Calls with the tokens of several users."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.secrets: dict[str, str] = {}

    async def join(self, user: str, role: str = "submit") -> None:
        body = {"role": role, "name": f"laptop of {user}", "user": user}
        answer = await self.served.call("POST", "/v1/tokens", json=body)
        assert answer.status_code == 201, answer.text
        assert answer.json()["user"] == user
        self.secrets[user] = answer.json()["secret"]

    async def ask(self, user: str, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = bearer(self.secrets[user])
        return await self.served.http.request(method, path, headers=headers, json=body)

    async def make(self, user: str, method: str, path: str, body: Any) -> dict[str, Any]:
        answer = await self.ask(user, method, path, body)
        assert answer.status_code in (200, 201), answer.text
        found: dict[str, Any] = answer.json()
        return found


@pytest.fixture
async def people(served: Served) -> People:
    made = People(served)
    for user in ("alice", "bob"):
        await made.join(user)
    await made.join("root", "admin")
    return made


async def make_work(people: People, user: str) -> dict[str, str]:
    """Submit one of each; the paths."""
    job = await people.make(user, "POST", "/v1/jobs", TRUE)
    array = await people.make(user, "POST", "/v1/arrays", {"job": TRUE, "array": "0-1"})
    calls = {"id": make_new_id(), "spec": {"function": "m:f"}, "args": ["{}"]}
    made = await people.make(user, "POST", "/v1/call-sets", calls)
    node = {"name": "a", "job": {"spec": TRUE}}
    flow = {"id": make_new_id(), "spec": {"name": "w", "nodes": [node]}}
    run = await people.make(user, "POST", "/v1/workflows", flow)
    put = {"job": TRUE, "every_seconds": 3600}
    await people.make(user, "PUT", "/v1/schedules/nightly", put)
    return {
        "job": f"/v1/jobs/{job['id']}",
        "array": f"/v1/arrays/{array['id']}",
        "set": f"/v1/call-sets/{made['id']}",
        "run": f"/v1/workflows/{run['id']}",
        "schedule": "/v1/schedules/nightly",
    }


async def test_others_read_and_do_not_change(people: People) -> None:
    work = await make_work(people, "alice")
    for kind, path in work.items():
        shown = (await people.ask("bob", "GET", path)).json()
        assert shown["owner"] == "alice", kind
        verb = "pause" if kind == "schedule" else "cancel"
        refused = await people.ask("bob", "POST", f"{path}/{verb}", {})
        assert (refused.status_code, refused.json()["code"]) == (403, "not_the_owner"), kind
        text = refused.json()["detail"]
        assert "belongs to alice" in text
        assert "acts for bob" in text
        assert "holdfast projects set default shared=true" in text
    member = work["array"].replace("arrays", "jobs") + "%5B1%5D"
    assert (await people.ask("bob", "POST", f"{member}/cancel", {})).status_code == 403
    put = {"job": {"argv": ["/bin/false"]}, "every_seconds": 60}
    assert (await people.ask("bob", "PUT", work["schedule"], put)).status_code == 403
    assert (await people.ask("bob", "DELETE", work["schedule"])).status_code == 403
    more = {"first": 1, "args": ["{}"]}
    assert (await people.ask("bob", "POST", f"{work['set']}/calls", more)).status_code == 403
    for user in ("alice", "root"):
        assert (await people.ask(user, "POST", f"{work['run']}/cancel", {})).status_code < 300
    cancelled = (await people.ask("alice", "POST", f"{work['job']}/cancel", {})).json()
    assert cancelled["reason"] == "cancelled by alice"


async def test_a_project_may_share(people: People) -> None:
    work = await make_work(people, "alice")
    shared = {"set": {"shared": True}, "unset": []}
    assert (await people.ask("root", "PUT", "/v1/projects/default", shared)).status_code == 200
    for kind, path in work.items():
        verb = "pause" if kind == "schedule" else "cancel"
        assert (await people.ask("bob", "POST", f"{path}/{verb}", {})).status_code < 300, kind
    changed = await people.make("bob", "PUT", work["schedule"], {"job": TRUE, "every_seconds": 60})
    assert changed["owner"] == "alice", "a change takes nothing over"


async def test_of_many_jobs_those_of_others_are_refused(people: People) -> None:
    ids = [
        (await people.make(user, "POST", "/v1/jobs", TRUE))["id"]
        for user in ("alice", "bob", "alice")
    ]
    answer = await people.ask("bob", "POST", "/v1/jobs/cancel", {"ids": ids})
    items = answer.json()["items"]
    assert [bool(item["job"]) for item in items] == [False, True, False]
    assert items[0]["problem"]["code"] == "not_the_owner"
    answer = await people.ask("bob", "POST", "/v1/jobs/retry", {"ids": ids[:1]})
    assert answer.json()["items"][0]["problem"]["status"] == 403


async def test_lists_are_of_one_owner(people: People) -> None:
    for user in ("alice", "bob"):
        await people.make(user, "POST", "/v1/jobs", TRUE)
    await make_work(people, "alice")
    for path in ("jobs", "arrays", "call-sets", "workflows", "schedules"):
        everything = (await people.ask("bob", "GET", f"/v1/{path}")).json()["items"]
        assert "alice" in {row["owner"] for row in everything}, path
        mine = (await people.ask("bob", "GET", f"/v1/{path}?owner=@me")).json()["items"]
        assert {row["owner"] for row in mine} <= {"bob"}, path
        hers = (await people.ask("bob", "GET", f"/v1/{path}?owner=alice")).json()["items"]
        assert {row["owner"] for row in hers} == {"alice"}, path


async def test_an_owner_is_never_the_clients_word(people: People) -> None:
    body = {**TRUE, "owner": "alice"}
    assert (await people.ask("bob", "POST", "/v1/jobs", body)).status_code == 422
    refused = {"role": "submit", "user": "@me"}
    assert (await people.ask("root", "POST", "/v1/tokens", refused)).status_code == 422
    for given, user in (({"name": "ci"}, "ci"), ({}, "root"), ({"name": "x", "user": "y"}, "y")):
        made = await people.make("root", "POST", "/v1/tokens", {"role": "submit", **given})
        assert made["user"] == user


async def test_work_without_an_owner_is_everybodys(people: People, served: Served) -> None:
    """It is from before there were owners."""
    from holdfast.core.spec import JobSpec
    from holdfast.moves.values import NewJob

    job = NewJob(id=make_new_id(), spec=JobSpec(argv=("true",)), queue="cpu")
    executor = NewJob(
        id=make_new_id(), spec=JobSpec(argv=("true",), executor="family"), queue="cpu"
    )
    await served.store.jobs.submit_jobs([job, executor])
    assert (await people.ask("bob", "POST", f"/v1/jobs/{job.id}/cancel", {})).status_code == 200
    refused = await people.ask("bob", "POST", f"/v1/jobs/{executor.id}/cancel", {})
    assert refused.status_code == 403, "it runs calls of other users, too"
    assert (
        await people.ask("root", "POST", f"/v1/jobs/{executor.id}/cancel", {})
    ).status_code == 200


async def test_targets_of_notices_are_the_projects_own(people: People) -> None:
    """The cluster's are an admin's to change, a project's are its users' where it is shared."""
    target = {"url": "ntfys://ntfy.sh/room"}
    refused = await people.ask("bob", "PUT", "/v1/notices/room", target)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert (await people.ask("bob", "PUT", "/v1/notices/room?project=p", target)).status_code == 403
    await people.make("root", "PUT", "/v1/projects/p", {"set": {"shared": True}, "unset": []})
    await people.make("bob", "PUT", "/v1/notices/room?project=p", target)
    for path in ("/v1/notices/room", "/v1/notices/room?project=q"):
        assert (await people.ask("bob", "DELETE", path)).status_code == 403
    assert (await people.ask("bob", "DELETE", "/v1/notices/room?project=p")).status_code == 204
