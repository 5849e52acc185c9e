"""Every act of every page: it is a call that the API has, it is drawn only where the API would take
it (ACT-1), and it leaves an event that names its user (BY-1)."""

from __future__ import annotations

import asyncio
import html
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.controller.routes import ENDPOINTS
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import make_id
from holdfast.web import acts
from holdfast.web.acts import ACTS
from holdfast.wire.agent import TaskReport
from tests.unit.controller.conftest import FakeAgent, Served
from tests.unit.controller.fleet.world import ScriptedProvider
from tests.unit.controller.web.conftest import Browser
from tests.unit.test_documents import find_strangers
from tests.waits import Patience, within

ROLES = ("read", "submit", "admin")
POOL = {"provider": "local", "max": 3, "offers": [{"name": "s", "cpu_slots": 2, "usd_per_hour": 1}]}
RUN = make_id(1, 1)
SET = make_id(1, 2)
FREE_PORT = "http://127.0.0.1:9/hook"  # nothing listens at the port of `discard`
NEW_EACH = ("queue.create", "project.create", "token.create", "hook.create", "target.create")


def test_each_act_is_a_call_that_the_api_has_for_that_role() -> None:
    known = {(each.method, each.path): each for each in ENDPOINTS}
    for name, act in ACTS.items():
        endpoint = known[act.method, act.path.partition("?")[0]]
        needed = endpoint.role.name.lower()
        assert ROLES.index(act.role) >= ROLES.index(needed), name
        assert not act.undo or ACTS[act.undo].role == act.role, name
        assert act.ask.endswith("."), name


def test_a_setting_that_is_changed_back_is_the_one_that_was_there() -> None:
    text = acts.write_act("setting.set", "x", params={}, undo_body={"unset": ["x"]})
    assert msgspec.json.decode(text)["undo"] == {
        "method": "PATCH",
        "path": "/v1/config",
        "body": {"unset": ["x"]},
    }


def test_a_name_with_a_slash_stays_one_part_of_a_path() -> None:
    text = acts.write_act("project.set", "x", params={"name": "team/nlp?"})
    assert msgspec.json.decode(text)["path"] == "/v1/projects/team%2Fnlp%3F"


def test_commands_that_pages_name_exist() -> None:
    folder = Path(acts.__file__).parent / "templates"
    texts = "".join(path.read_text() for path in folder.rglob("*.html"))
    named = re.findall(r"<code>(holdfast [^<]*)</code>", re.sub(r"\{\{.*?\}\}", "X", texts))
    assert len(named) > 20
    assert [(each, list(find_strangers(html.unescape(each)))) for each in named] == [
        (each, []) for each in named
    ]


class Person:
    """A person at a browser who does what pages offer."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    async def read_acts(self, path: str) -> list[dict[str, Any]]:
        answer = await self.browser.send("GET", path)
        assert answer.status_code == 200, (path, answer.text)
        found = re.findall(r'data-act="([^"]*)"', answer.text)
        return [msgspec.json.decode(html.unescape(each)) for each in found]

    async def do(self, name: str, page: str, /, named: str = "", **fields: Any) -> None:
        """Do the first act of this name that a page offers, on the thing `named`."""
        act = ACTS[name]
        path = act.path.replace("{action}", name.partition(".")[2])
        words = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)) + r"(\?.*)?"
        wanted = [
            each
            for each in await self.read_acts(page)
            if each["method"] == act.method
            and each["title"].startswith(act.button)
            and (re.fullmatch(words, each["path"]) or each["path"] == act.path)
            and named in each["path"] + each["title"]
        ]
        assert wanted, (name, page)
        target = wanted[0]["path"].replace("{name}", fields.pop("new", ""))
        body = {**wanted[0].get("body", {}), **fields}
        answer = await self.browser.send(act.method, target, proof=True, json=body)
        assert answer.status_code < 300, (name, answer.text)


async def prepare(served: Served, agent: FakeAgent) -> str:
    """Make one of each kind of thing, and return the id of a job."""
    provider = ScriptedProvider()
    served.controller.open_provider = lambda kind, config, installation: provider
    made: list[tuple[str, str, Any]] = [
        ("PATCH", "/v1/config", {"set": {"webhook_allow_private": True, "webhook_tries": 1}}),
        ("PUT", "/v1/pools/p", POOL),
        ("PUT", "/v1/schedules/s", {"every_seconds": 3600, "job": {"argv": ["/bin/true"]}}),
        ("POST", "/v1/call-sets", {"id": SET, "spec": {"function": "m:f"}, "args": ["{}"], "count": 1}),
        ("POST", "/v1/webhooks", {"url": FREE_PORT, "name": "hook", "events": ["job.*"]}),
        (
            "POST",
            "/v1/workflows",
            {"id": RUN, "spec": {"name": "w", "nodes": [{"name": "q", "ask": {"prompt": "On?"}}]}},
        ),
    ]  # fmt: skip
    for method, path, body in made:
        answer = await served.call(method, path, json=body)
        assert answer.status_code < 300, (path, answer.text)
    job = await served.submit(name="train")
    return str(job["id"])


async def list_told(served: Served) -> list[dict[str, Any]]:
    events = (await served.call("GET", "/v1/events?tail=1000")).json()["items"]
    return [each for each in events if each["data"].get("by") == "tester"]


async def test_every_act_of_every_page_leaves_an_event_that_names_its_user(
    served: Served, agent: FakeAgent, browser: Browser
) -> None:
    job_id = await prepare(served, agent)
    (hook,) = (await served.call("GET", "/v1/webhooks")).json()["items"]
    hook_page = f"/settings/webhooks/{hook['id']}"
    async with within(20):
        while True:
            nodes = (await served.call("GET", f"/v1/workflows/{RUN}/nodes")).json()["items"]
            dead = (await served.call("GET", f"/v1/webhooks/{hook['id']}")).json()["dead"]
            if nodes[0]["started_at"] and dead:
                break
            await asyncio.sleep(0.05)
    person, job = Person(browser), f"/jobs/{job_id}"
    other = Browser(served)
    await other.sign_in("read")
    steps: list[tuple[str, str, dict[str, Any]]] = [
        ("job.cancel", job, {"reason": "no need"}),
        ("job.retry", job, {}),
        ("host.drain", "/hosts/h1", {"reason": "a fan"}),
        ("host.undrain", "/hosts/h1", {}),
        ("host.quarantine", "/hosts/h1", {"reason": "a fan"}),
        ("host.release", "/hosts/h1", {}),
        ("queue.create", "/queues", {"new": "night"}),
        ("queue.set", "/queues", {"named": "queue night", "set": {"max_running": 3}}),
        ("queue.pause", "/queues", {"named": "queue night", "reason": "a while"}),
        ("queue.resume", "/queues", {"named": "queue night"}),
        ("queue.delete", "/queues", {"named": "queue night"}),
        ("project.create", "/queues", {"new": "vision"}),
        ("project.set", "/queues", {"named": "vision", "set": {"quota_gpus": 4}}),
        ("pool.scale", "/pools", {"max": 5}),
        ("pool.pause", "/pools/p", {"reason": "a bill"}),
        ("pool.resume", "/pools/p", {}),
        ("pool.delete", "/pools/p", {}),
        ("schedule.run", "/schedules", {}),
        ("schedule.pause", "/schedules", {"reason": "a while"}),
        ("schedule.resume", "/schedules/s", {}),
        ("schedule.delete", "/schedules/s", {}),
        ("run.answer", f"/workflows/{RUN}", {"answer": "yes"}),
        ("run.restart", f"/workflows/{RUN}?node=q", {"named": "from q"}),
        ("run.cancel", f"/workflows/{RUN}", {"reason": "no need"}),
        ("calls.cancel", "/calls", {"reason": "no need"}),
        ("calls.retry", f"/calls/{SET}", {}),
        ("setting.set", "/settings?q=history_days", {"set": {"history_days": 40}}),
        ("setting.unset", "/settings?q=history_days", {}),
        ("setting.set", "/settings?q=retries_enabled", {"set": {"retries_enabled": False}}),
        ("retries.release", "/", {}),
        ("project.set", "/queues", {"named": "vision", "set": {"retries_enabled": False}}),
        ("project.release", "/", {}),
        ("token.create", "/settings", {"role": "read", "name": "spare"}),
        ("token.revoke", "/settings", {"named": "spare"}),
        ("hook.create", "/settings", {"url": FREE_PORT, "name": "second"}),
        ("hook.redeliver-dead", "/settings", {}),
        ("delivery.again", hook_page, {}),
        ("hook.test", hook_page, {}),
        ("hook.rotate", hook_page, {}),
        ("hook.pause", hook_page, {"reason": "a while"}),
        ("hook.resume", hook_page, {}),
        ("hook.delete", hook_page, {}),
        ("target.create", "/settings", {"new": "team", "url": "ntfy://127.0.0.1:9/x"}),
        ("target.set", "/settings", {"url": "ntfy://127.0.0.1:9/y"}),
        ("target.test", "/settings", {}),
        ("target.delete", "/settings", {}),
    ]  # fmt: skip
    before = len(await list_told(served))
    silent: list[str] = []
    for name, page, fields in steps:
        if name == "run.restart":
            await wait_over(served)
        await person.do(name, page, **fields)
        if not ACTS[name].quiet:
            after = await wait_for_more(served, before)
            silent += [] if after else [name]
            before = max(before, after)
    assert silent == []
    sign_ins = (await served.call("GET", "/v1/sign-ins")).json()["items"]
    await person.do("sign-in.end", "/settings", named=sign_ins[-1]["id"])
    assert await wait_for_more(served, before)
    left = {"pool.forget", "session.end", "sign-in.end"}  # the first once all its machines went
    assert {name for name, _, _ in steps} | left == set(ACTS)


async def wait_for_more(served: Served, before: int) -> int:
    """Return the number of events that name the user once there are more; 0 where none comes. An
    event is shown once no older transaction is open (STORE-4)."""
    patience = Patience(5)
    while not patience.over:
        told = await list_told(served)
        if len(told) > before:
            return len(told)
        await asyncio.sleep(0.02)
    return 0


async def wait_over(served: Served) -> None:
    async with within(20):
        while (await served.call("GET", f"/v1/workflows/{RUN}")).json()["state"] == "running":
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("role", ["read", "submit", "admin"])
async def test_no_page_shows_a_button_that_would_be_refused(
    served: Served, agent: FakeAgent, role: str
) -> None:
    job_id = await prepare(served, agent)
    (hook,) = (await served.call("GET", "/v1/webhooks")).json()["items"]
    answer = await served.call(
        "POST", "/v1/tokens", json={"role": "submit", "name": "bob", "user": "bob"}
    )
    headers = {"Authorization": f"Bearer {answer.json()['secret']}"}
    theirs = await served.http.post("/v1/jobs", headers=headers, json={"argv": ["/bin/true"]})
    browser = Browser(served)
    await browser.sign_in(role)
    person = Person(browser)
    pages = [
        "/", "/jobs", f"/jobs/{job_id}", f"/jobs/{job_id}/again", f"/jobs/{theirs.json()['id']}",
        "/hosts", "/hosts/h1", "/queues", "/pools", "/pools/p", "/workflows", f"/workflows/{RUN}",
        f"/workflows/{RUN}?node=q", "/calls", f"/calls/{SET}", "/schedules", "/schedules/s",
        "/events", "/report", "/settings", "/find?q=t",
    ]  # fmt: skip
    hook_page = f"/settings/webhooks/{hook['id']}"
    if role == "admin":
        pages.append(hook_page)
    assert ((await browser.send("GET", hook_page)).status_code == 403) == (role != "admin")
    offered = 0
    for page in pages:
        text = (await browser.send("GET", page)).text
        assert role == "admin" or "data-bulk" not in text or (role == "submit" and page == "/jobs")
        assert role != "read" or 'id="again"' not in text
        for act in await person.read_acts(page):
            own = act["path"].startswith("/v1/sign-ins/")
            assert role != "read" or own, (page, act)
            offered += not own
            if role == "submit" and not own:  # the whole right of it, owner and all
                checked = await served.call(
                    act["method"], act["path"], "submit", headers={"Content-Type": "text/plain"}
                )
                assert checked.status_code != 403, (page, act)
    assert (offered > 0) == (role != "read")
    mine = await person.read_acts(f"/jobs/{job_id}")
    assert bool(mine) == (role != "read")
    assert bool(await person.read_acts(f"/jobs/{theirs.json()['id']}")) == (role == "admin")


async def test_a_parked_job_needs_a_person_and_is_tried_again(
    served: Served, agent: FakeAgent, browser: Browser
) -> None:
    await served.call("PATCH", "/v1/config", json={"set": {"start_failure_limit": 1}})
    job = await served.submit(name="train", tasks=2, start_timeout_seconds=1)
    async with within(30):
        while (await served.job(job["id"]))["wait_cause"] != "parked":
            answer = await agent.sync(wait=0.2)
            ends = [
                TaskReport(key=each.key, state="ended", facts=TaskFacts(stopped=True))
                for each in answer.preempt
            ]
            await agent.sync(*ends)
    person = Person(browser)
    assert "it is parked until" in (await browser.send("GET", f"/jobs/{job['id']}")).text
    await person.read_acts(f"/jobs/{job['id']}")
    await person.do("job.retry", "/")
    assert (await served.job(job["id"]))["wait_cause"] != "parked"
