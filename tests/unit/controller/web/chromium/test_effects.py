"""Every act of every page by clicks in a real Chromium: its effect in the database, and its undo."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from holdfast.wire.operations.acts import ACTS
from tests.unit.controller.conftest import FakeAgent
from tests.unit.controller.web.chromium.person import SECOND, Person, expect
from tests.unit.controller.web.effects import (
    EFFECTS,
    Cluster,
    Effect,
    check_effect,
    find_act,
    open_cluster,
)

if TYPE_CHECKING:  # a machine without Chromium has no playwright either
    from playwright.async_api import Page


class Clicker:
    """A person who clicks on an act's button, fills its dialog in, and confirms it."""

    def __init__(self, person: Person, page: Page, cluster: Cluster) -> None:
        self.person, self.page, self.cluster = person, page, cluster

    async def act(self, effect: Effect) -> bool:
        page = self.page
        await page.goto(
            self.person.base + effect.page % self.cluster.ids, wait_until="domcontentloaded"
        )
        buttons = page.locator("[data-act]")
        words = await buttons.evaluate_all("(all) => all.map((each) => each.dataset.act)")
        acts = [json.loads(each) for each in words]
        place = find_act(acts, effect, self.cluster.ids)
        await buttons.nth(place).click()
        for name, text in effect.fields.items():
            field = page.locator(f'#dialog [name="{name}"]')
            kind = await field.get_attribute("data-kind")
            if kind == "check":
                await field.check()
            elif kind == "choice":
                await field.select_option(text)
            else:
                await field.fill(text)
        await page.click("#dialog-yes")
        if ACTS[effect.act].shows:
            await page.locator("#dialog-shown").wait_for(timeout=SECOND)
            await page.get_by_text("Leave it").click()
        await page.locator("#told", has_text=": done.").wait_for(timeout=SECOND)
        offered = await page.locator("#undo").is_visible()
        assert offered == ("undo" in acts[place])
        return offered

    async def undo(self) -> None:
        await self.page.click("#undo")
        await self.page.locator("#told", has_text="Undone").wait_for(timeout=SECOND)


async def test_every_act_of_every_page_has_its_effect(person: Person, agent: FakeAgent) -> None:
    async with open_cluster(person.served, agent) as cluster:
        context = await person.chromium.new_context()
        other = await context.new_page()
        await other.goto(await person.link("read"))
        await other.wait_for_url(f"{person.base}/")
        query = "select id from sign_ins order by created_at desc limit 1"
        cluster.ids["sign_in"] = (await cluster.look(query) or {})["id"]
        clicker = Clicker(person, await person.sign_in(), cluster)
        for effect in EFFECTS:
            await check_effect(cluster, clicker, effect)
        await other.wait_for_url("**/sign-in", timeout=4 * SECOND)  # its sign-in was ended
        await context.close()


async def test_rows_that_cannot_take_an_act_are_left_out_and_each_is_brought_back_as_it_was(
    person: Person, agent: FakeAgent
) -> None:
    query = "select array_agg(paused_reason || hard order by name) as all from queues where name < 'd' and name <> 'cpu'"
    async with open_cluster(person.served, agent) as cluster:
        for name, pause in (("a", {"reason": "one", "hard": True}), ("b", {"reason": "two"})):
            await cluster.call("PUT", f"/v1/queues/{name}", {})
            await cluster.call("POST", f"/v1/queues/{name}/pause", pause)
        await cluster.call("PUT", "/v1/queues/c", {})
        before = await cluster.look(query)
        assert before == {"all": ["onetrue", "twofalse", "false"]}
        page = await person.sign_in()
        await page.goto(f"{person.base}/queues")
        for name in ("a", "b", "c"):
            await page.check(f"#queue-{name} [data-pick]")
        await page.get_by_role("button", name="Resume…").click()
        await expect(page.locator("#dialog-title")).to_have_text("Resume 2 queues")
        await page.click("#dialog-yes")
        await expect(page.locator("#told")).to_contain_text("Resume: 2 of 2 queues.")
        assert await cluster.look(query) == {"all": ["false", "false", "false"]}
        await page.click("#undo")
        await expect(page.locator("#told")).to_contain_text("Undone", timeout=SECOND)
        assert await cluster.look(query) == before
        await page.check("#queue-a [data-pick]")
        await page.get_by_role("button", name="Pause…").click()
        await expect(page.locator("#trouble")).to_contain_text("No queue that is chosen")


async def test_an_undo_leaves_what_another_person_changed_since(
    person: Person, agent: FakeAgent
) -> None:
    path, query = "/v1/projects/vision", "select settings from projects where name = 'vision'"
    async with open_cluster(person.served, agent) as cluster:
        await cluster.call("PUT", path, {"set": {"quota_gpus": 1, "quota_jobs": 1}})
        page = await person.sign_in()
        await page.goto(f"{person.base}/queues")
        row = page.locator("#projects tr", has_text="vision")
        await row.get_by_text("Quotas and budget").click()
        await page.fill('#dialog [name="set.quota_gpus"]', "8")
        await page.click("#dialog-yes")
        await expect(page.locator("#told")).to_contain_text("done", timeout=SECOND)
        await cluster.call("PUT", path, {"set": {"quota_jobs": 5, "max_retries": 2}})
        await page.click("#undo")
        await expect(page.locator("#told")).to_contain_text("Undone", timeout=SECOND)
        assert await cluster.look(query) == {
            "settings": {"quota_gpus": 1, "quota_jobs": 5, "max_retries": 2}
        }
