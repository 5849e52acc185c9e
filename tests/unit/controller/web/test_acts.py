"""Every act of every page is a call that the API has, and is drawn only where the API would take it
(ACT-1). Their effects stand in `effects.py`."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.controller.routes import ENDPOINTS
from holdfast.core.facts import TaskFacts
from holdfast.web import acts
from holdfast.wire.agent import TaskReport
from holdfast.wire.operations.acts import ACTS
from tests.unit.controller.conftest import FakeAgent, Served
from tests.unit.controller.web.conftest import Browser
from tests.unit.controller.web.effects import RUN, SET, prepare
from tests.unit.test_documents import find_strangers
from tests.waits import within

ROLES = ("read", "submit", "admin")


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


def test_what_held_a_host_returns_with_its_reason_and_the_rest_of_its_time() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    host = SimpleNamespace(
        state="draining", reason="a fan", drain_deadline=now + timedelta(hours=1)
    )
    back = acts.make_way_back("host.undrain", host, now)
    assert back == {"reason": "a fan", "deadline_seconds": 3600}
    late = acts.make_way_back("host.undrain", host, now + timedelta(days=1))
    assert late == {"reason": "a fan", "deadline_seconds": 1}


def test_a_quarantine_of_a_host_that_drains_cannot_be_taken_back() -> None:
    """A release would give it work."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    draining = SimpleNamespace(state="draining", reason="a fan")
    assert acts.make_way_back("host.quarantine", draining, now) is None
    assert acts.make_way_back("host.quarantine", SimpleNamespace(state="active"), now) == {}
    takes = acts.write_takes(["host.undrain", "host.quarantine"], draining, now)
    assert msgspec.json.decode(takes) == {"Undrain": {"reason": "a fan"}, "Quarantine": None}


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


async def list_told(served: Served) -> list[dict[str, Any]]:
    events = (await served.call("GET", "/v1/events?tail=1000")).json()["items"]
    return [each for each in events if each["data"].get("by") == "tester"]


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
    (act,) = [each for each in await person.read_acts("/") if job["id"] in each["path"]]
    assert act in await person.read_acts(f"/jobs/{job['id']}")
    answer = await browser.send(act["method"], act["path"], proof=True, json={})
    assert answer.status_code == 200
    assert (await served.job(job["id"]))["wait_cause"] != "parked"
