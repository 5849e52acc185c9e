"""The reads of a page that opens, and of one whose controller was away."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.controller.server import RunningServer, bind_socket
from tests.simulated.blobs import MemoryBlobs
from tests.unit.controller.conftest import FakeAgent
from tests.unit.controller.web.chromium.person import SECOND, Person, expect
from tests.unit.controller.web.chromium.test_output import start

if TYPE_CHECKING:  # a machine without Chromium has no playwright either
    from playwright.async_api import Page


async def test_a_page_that_was_just_drawn_is_not_read_again_unless_something_happened(
    person: Person,
) -> None:
    job = await person.served.submit(name="first")
    page = await person.sign_in()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    path = f"{person.base}/jobs/{job['id']}?tab=spec"
    await page.goto(path)
    await expect(page.locator("#live")).to_have_text("live", timeout=SECOND)
    await asyncio.sleep(1.0)
    assert asked.count(path) == 1
    assert len([url for url in asked if not url.endswith("/live")]) <= 5

    async def happen_first(route: Any) -> None:
        await person.served.call("POST", f"/v1/jobs/{job['id']}/cancel", json={})
        await route.continue_()

    await page.route("**/live", happen_first)
    await page.goto(path)
    await expect(page.locator("#head .state")).to_have_text("cancelled", timeout=SECOND)


async def read_words(page: Page) -> str:
    """Return what a page says, without how long ago things were and how long they lasted."""
    words = await page.locator("main").inner_text()
    return re.sub(r"\b\d+ (ms|s|m|h)\b( \d+ s)?|\d\d:\d\d:\d\d\.\d{3}", "", words)


async def test_a_job_is_whole_again_when_its_controller_is_back(
    person: Person, agent: FakeAgent
) -> None:
    """As whole as a page that is loaded afresh."""
    job, writer = await start(person, agent)
    page = await person.sign_in()
    path = f"{person.base}/jobs/{job}"
    await page.goto(path)
    await writer.count(50)
    await expect(page.locator("#log")).to_contain_text("step 49 of many", timeout=SECOND)
    running, port = person.served.running, int(person.base.rpartition(":")[2])
    await running.stop()
    await expect(page.locator("#live")).to_have_text("no connection", timeout=SECOND)
    again = RunningServer(person.served.store, bind_socket("127.0.0.1", port), blobs=MemoryBlobs())
    await again.start()
    person.served.running, person.served.controller = again, again.controller
    await writer.count(50)
    await person.served.call("POST", f"/v1/jobs/{job}/cancel", json={"reason": "meanwhile"})
    await expect(page.locator("#live")).to_have_text("live", timeout=2 * SECOND)
    await expect(page.locator("#log")).to_contain_text("step 99 of many", timeout=SECOND)
    await expect(page.locator("#head .state")).not_to_have_text("running", timeout=SECOND)
    fresh = await person.open()
    await fresh.goto(path)
    await expect(fresh.locator("#log")).to_contain_text("step 99 of many", timeout=SECOND)
    await expect(fresh.locator("#live")).to_have_text("live", timeout=SECOND)
    assert await read_words(page) == await read_words(fresh)
    await again.stop()


async def test_a_hidden_page_reads_nothing_until_it_is_shown(person: Person) -> None:
    job = await person.served.submit(name="shared")
    page, shown = await person.sign_in(), await person.open()
    path = f"{person.base}/jobs/{job['id']}?tab=spec"
    for each in (page, shown):
        await each.goto(path)
        await expect(each.locator("#live")).to_have_text("live", timeout=SECOND)
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    await page.evaluate(hide, True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await person.served.call("POST", f"/v1/jobs/{job['id']}/cancel", json={})
    await expect(shown.locator("#head .state")).to_have_text("cancelled", timeout=SECOND)
    assert path not in asked
    assert await page.locator("#head .state").inner_text() != "cancelled"
    await page.evaluate(hide, False)
    await expect(page.locator("#head .state")).to_have_text("cancelled", timeout=SECOND)


async def test_nothing_moves_under_the_pointer_and_what_changes_there_changes_in_place(
    person: Person, agent: FakeAgent
) -> None:
    """Hosts that need a person stand first, so that a quarantine moves a row up."""
    for name in ("h2", "h3"):
        await FakeAgent(person.served, name).register()
    page = await person.sign_in()
    await page.goto(f"{person.base}/hosts")
    await expect(page.locator("#live")).to_have_text("live", timeout=SECOND)
    rows, names = page.locator("#hosts tbody tr"), page.locator("#hosts tbody a")
    await rows.nth(1).hover()
    before = await rows.nth(1).bounding_box()
    await person.served.call("POST", "/v1/hosts/h3/quarantine", json={"reason": "a fan"})
    await expect(rows.nth(2)).to_contain_text("quarantined", timeout=SECOND)
    await person.served.call("POST", "/v1/hosts/h1/quarantine", json={"reason": "a taller row"})
    await FakeAgent(person.served, "h0").register()
    await expect(page.locator("#later")).to_contain_text("1 new", timeout=SECOND)
    assert await names.all_text_contents() == ["h1", "h2", "h3"]
    assert await rows.nth(1).bounding_box() == before
    await page.mouse.move(5, 5)
    await expect(names).to_have_text(["h1", "h3", "h0", "h2"], timeout=SECOND)
    await expect(page.locator("#later")).to_be_hidden()


async def test_what_grows_above_the_pointer_moves_nothing_below_it(
    person: Person, agent: FakeAgent
) -> None:
    jobs = [await person.served.submit(name=f"job-{n}") for n in range(12)]
    page = await person.sign_in(viewport={"width": 1440, "height": 500})
    await page.goto(f"{person.base}/")
    await expect(page.locator("#live")).to_have_text("live", timeout=SECOND)
    row = page.locator("#jobs tbody tr").nth(2)
    await row.hover()
    before = await row.bounding_box()
    await person.served.call("POST", "/v1/hosts/h1/quarantine", json={"reason": "a fan"})
    await expect(page.locator("#needs")).to_contain_text("a fan", timeout=SECOND)
    # A page is scrolled by whole pixels, and what grew may end at a half.
    assert await row.bounding_box() == pytest.approx(before, abs=1)
    await person.served.call("POST", f"/v1/jobs/{jobs[-3]['id']}/cancel", json={})
    await page.mouse.move(5, 5)
    await expect(page.locator("#jobs")).not_to_contain_text("job-9", timeout=SECOND)
