"""What a page reads when it opens: once, and again only where something happened meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.controller.web.chromium.person import SECOND, Person, expect


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
