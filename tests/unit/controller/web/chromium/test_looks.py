"""How pages look and are used: each with axe in both schemes and on a phone, on paper, with compact
rows, and by the keyboard alone."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from tests.unit.controller.conftest import FakeAgent
from tests.unit.controller.web.chromium.person import SECOND, Person, expect
from tests.unit.controller.web.effects import list_paths
from tests.unit.controller.web.test_plots import write_history

FOCUS = """(() => { const look = getComputedStyle(document.activeElement);
  return look.outlineStyle !== "none" && parseFloat(look.outlineWidth) >= 2; })()"""
COLOURED = """[...document.querySelectorAll("main *")].filter((each) => each.checkVisibility()
  && [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
  && getComputedStyle(each).color !== "rgb(0, 0, 0)").map((each) => each.outerHTML.slice(0, 200))"""


async def list_grave(page: Any, path: str) -> list[str]:
    """Return what axe finds on a page in both schemes that keeps a person from using it."""
    from axe_playwright_python.async_playwright import Axe

    grave = []
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        grave += [
            f"{path} {scheme}: {one['id']} {one['nodes'][0]['html'][:200]}"
            for one in (await Axe().run(page)).response["violations"]
            if one["impact"] in ("serious", "critical")
        ]
    return grave


async def test_every_page_is_accessible_light_dark_and_on_a_phone(
    person: Person, agent: FakeAgent
) -> None:
    await write_history(person.served, agent, 900)
    paths = [*await list_paths(person.served, agent), "/jobs/none", "/sign-in"]
    page = await person.sign_in()
    for path in paths:
        await page.set_viewport_size({"width": 1440, "height": 900})
        await page.goto(person.base + path)
        assert await list_grave(page, path) == []
        await page.set_viewport_size({"width": 360, "height": 740})
        assert await page.evaluate("document.scrollingElement.scrollWidth") <= 360, path
        if folder := os.environ.get("HOLDFAST_TEST_PICTURES"):
            name = re.sub(r"\W+", "-", path)
            await page.screenshot(path=f"{folder}/phone{name}.png", full_page=True)
    await page.goto(f"{person.base}/jobs")
    await page.keyboard.press("?")
    assert await list_grave(page, "the keys") == []


async def test_a_job_is_found_read_and_cancelled_without_a_mouse(person: Person) -> None:
    for name in ("first", "second"):
        job = await person.served.submit(name=name)
    page = await person.sign_in()

    async def tab_to(what: str) -> None:
        for _ in range(60):
            await page.keyboard.press("Tab")
            assert await page.evaluate(FOCUS), await page.evaluate(
                "document.activeElement.outerHTML.slice(0, 200)"
            )
            if await page.locator(f"{what}:focus").count():
                return
        raise AssertionError(f"Tab does not come to {what}")

    await tab_to(".skip")
    await tab_to(".places [href='/jobs']")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("Jobs")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("second")
    await tab_to("#head button.stop")
    await page.keyboard.press("Enter")
    await expect(page.locator("#dialog")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("#dialog")).to_be_hidden()
    await tab_to("#log")
    assert (await person.served.job(job["id"]))["state"] == "queued"
    await page.goto(f"{person.base}/jobs/{job['id']}")
    await tab_to("#head button.stop")
    await page.keyboard.press("Enter")
    await page.keyboard.type("wrong data")
    await tab_to("#dialog-yes")
    await page.keyboard.press("Enter")
    await expect(page.locator("#head .state")).to_have_text("cancelled", timeout=SECOND)
    assert "wrong data" in (await person.served.job(job["id"]))["reason"]
    await page.keyboard.press("/")
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await expect(page.locator("#keys")).to_contain_text("closes what is open")


async def test_a_page_is_printed_black_on_white_without_its_frame(
    person: Person, agent: FakeAgent
) -> None:
    jobs = [await person.served.submit(name=f"train-{n}") for n in range(12)]
    page = await person.sign_in()
    await page.emulate_media(media="print", color_scheme="dark")
    for path in ("/", "/jobs", f"/jobs/{jobs[0]['id']}", "/hosts", "/queues", "/report"):
        await page.goto(person.base + path)
        for hidden in (".places", ".top", "button:not(.order)"):
            for each in await page.locator(hidden).all():
                assert not await each.is_visible(), (path, hidden)
        assert await page.evaluate(COLOURED) == [], path
        ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(255, 255, 255)"
    await page.goto(f"{person.base}/jobs")
    await page.set_viewport_size({"width": 718, "height": 1000})  # A4
    assert await page.evaluate("document.scrollingElement.scrollWidth") <= 718
    assert await page.locator("td.wide").first.is_visible()  # paper is no phone
    if folder := os.environ.get("HOLDFAST_TEST_PICTURES"):
        await page.screenshot(path=f"{folder}/print.png")


async def test_rows_are_compact_where_a_person_chose_it_and_stay_so(
    person: Person, agent: FakeAgent
) -> None:
    await person.served.submit(name="train")
    page = await person.sign_in()
    await page.goto(f"{person.base}/queues")
    cell = page.locator("#queues tbody td").first  # the border between head and rows is halved
    assert (await cell.bounding_box() or {})["height"] == pytest.approx(32, abs=0.6)
    await page.keyboard.press("c")
    assert (await cell.bounding_box() or {})["height"] == pytest.approx(28, abs=0.6)
    await page.reload()
    assert (await cell.bounding_box() or {})["height"] == pytest.approx(28, abs=0.6)
    await page.keyboard.press("?")
    keys = page.locator("#keys")
    await expect(keys).to_be_visible(timeout=SECOND)
    await expect(keys).to_contain_text("compact rows")
    if folder := os.environ.get("HOLDFAST_TEST_PICTURES"):
        await page.screenshot(path=f"{folder}/keys.png")
    await keys.get_by_label("Compact rows").uncheck()
    await page.keyboard.press("Escape")
    await expect(keys).to_be_hidden()
    assert (await cell.bounding_box() or {})["height"] == pytest.approx(32, abs=0.6)
