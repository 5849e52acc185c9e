"""Every act of every page has its effect in the database, leaves an event that names its user (BY-1),
is taken back where it has an undo, and changes nothing for a user who may not do it (ACT-1, OWNER-1)."""

from __future__ import annotations

import html
import re
from typing import Any

import msgspec

from holdfast.wire.operations.acts import ACTS
from tests.unit.controller.conftest import FakeAgent, Served
from tests.unit.controller.web.conftest import Browser, sign_in_with
from tests.unit.controller.web.effects import (
    EFFECTS,
    Cluster,
    Effect,
    check_effect,
    find_act,
    is_same,
    open_cluster,
)

Act = dict[str, Any]
STRANGER = "stranger"
REFUSALS = ("forbidden", "not_found", "not_the_owner")


def test_every_act_has_its_effect_in_the_table() -> None:
    assert {effect.act for effect in EFFECTS} == set(ACTS)


def write_body(act: Act, filled: dict[str, str]) -> Act:
    """Return the body of an act whose dialog was filled in, as the pages' script makes it."""
    kinds = {each["name"]: each.get("kind", "text") for each in act.get("fields", ())}
    if act.get("reason"):
        kinds["reason"] = "text"
    body: Act = dict(act.get("body", {}))
    for name, text in filled.items():
        value: object = text
        if kinds[name] == "number":
            value = int(text)
        elif kinds[name] == "check":
            value = True
        elif kinds[name] == "list":
            value = [each.strip() for each in text.split(",")]
        place, dot, last = name.partition(".")
        if dot:
            body.setdefault(place, {})[last] = value
        else:
            body[place] = value
    return body


class Clicker:
    """A person at a browser who does what pages offer, and strangers who try the same first."""

    def __init__(self, cluster: Cluster, browser: Browser, strangers: dict[str, Browser]) -> None:
        self.cluster, self.browser, self.strangers = cluster, browser, strangers
        self.way_back: Act = {}

    async def act(self, effect: Effect) -> bool:
        answer = await self.browser.send("GET", effect.page % self.cluster.ids)
        assert answer.status_code == 200, (effect.page, answer.text)
        found = re.findall(r'data-act="([^"]*)"', answer.text)
        acts: list[Act] = [msgspec.json.decode(html.unescape(each)) for each in found]
        act = acts[find_act(acts, effect, self.cluster.ids)]
        body = write_body(act, dict(effect.fields))
        for name, value in body.pop("path", {}).items():
            act["path"] = act["path"].replace("{" + name + "}", value)
        await self.check_refusals(effect, act, body)
        answer = await self.browser.send(act["method"], act["path"], proof=True, json=body)
        assert answer.status_code < 300, (effect.act, answer.text)
        self.way_back = act.get("undo", {})
        return bool(self.way_back)

    async def undo(self) -> None:
        back = self.way_back
        answer = await self.browser.send(
            back["method"], back["path"], proof=True, json=back.get("body", {})
        )
        assert answer.status_code < 300, answer.text

    async def check_refusals(self, effect: Effect, act: Act, body: Act) -> None:
        """Have each user who may not do an act try it: a role below the act's, and for work another
        user of that role (OWNER-1)."""
        before = await self.cluster.look(effect.look)
        told = await self.cluster.count_events("%", "%")
        role = ACTS[effect.act].role
        roles = {"read": (), "submit": ("read",), "admin": ("read", "submit")}[role]
        for name in [*roles, *([] if role == "admin" else [STRANGER])]:
            answer = await self.strangers[name].send(
                act["method"], act["path"], proof=True, json=body
            )
            assert answer.status_code in (403, 404), (effect.act, name, answer.text)
            assert answer.json()["code"] in REFUSALS, (effect.act, name)
        assert is_same(await self.cluster.look(effect.look), before), (effect.act, "refused")
        assert await self.cluster.count_events("%", "%") == told, (effect.act, "refused")


async def test_every_act_of_every_page_has_its_effect_and_is_refused_to_others(
    served: Served, agent: FakeAgent, browser: Browser
) -> None:
    other = Browser(served)
    strangers = {role: Browser(served) for role in ("read", "submit")}
    async with open_cluster(served, agent) as cluster:
        await other.sign_in("read")
        query = "select id from sign_ins order by created_at desc limit 1"
        cluster.ids["sign_in"] = (await cluster.look(query) or {})["id"]
        for role, each in strangers.items():
            await each.sign_in(role)
        strangers[STRANGER] = await sign_in_with(served, {"role": "submit", "user": STRANGER})
        clicker = Clicker(cluster, browser, strangers)
        for effect in EFFECTS:
            await check_effect(cluster, clicker, effect)
        assert cluster.receiver.heard >= 3
    assert (await other.send("GET", "/jobs")).status_code == 401
