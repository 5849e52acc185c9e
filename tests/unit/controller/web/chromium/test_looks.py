"""How pages look where a person chose it: on paper, with compact rows; and the keys are shown."""

from __future__ import annotations

import os

import pytest

from tests.unit.controller.conftest import FakeAgent
from tests.unit.controller.web.chromium.person import SECOND, Person, expect

COLOURED = """[...document.querySelectorAll("main *")].filter((each) => each.checkVisibility()
  && [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
  && getComputedStyle(each).color !== "rgb(0, 0, 0)").map((each) => each.outerHTML.slice(0, 200))"""


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
