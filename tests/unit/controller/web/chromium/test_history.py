"""The plots of the report in a real Chromium: the times are the viewer's, and a column says its numbers."""

from __future__ import annotations

import os

from tests.unit.controller.conftest import FakeAgent
from tests.unit.controller.web.chromium.person import SECOND, Person, expect
from tests.unit.controller.web.test_plots import write_history


async def test_a_plots_times_are_of_the_viewers_zone(person: Person, agent: FakeAgent) -> None:
    await write_history(person.served, agent, 900)
    page = await person.sign_in(timezone_id="Asia/Tokyo", locale="en-GB")
    for span, words in (("24h", 8), ("7d", 7), ("30d", 6)):
        await page.goto(f"{person.base}/report?last={span}")
        columns = page.locator(".plot rect")
        await expect(columns.first).to_be_attached(timeout=SECOND)
        told = await columns.last.text_content()
        assert "Kept: " in (told or "")
        assert "UTC" not in (told or "")
        axis = page.locator(".plot .times span")
        assert words - 1 <= await axis.count() <= words + 1
        if span == "24h":
            hours = {int(each[:2]) for each in await axis.all_inner_texts() if ":" in each}
            assert hours <= set(range(0, 24, 3))
        if folder := os.environ.get("HOLDFAST_TEST_PICTURES"):
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # a word of two
                await page.set_viewport_size({"width": 1440, "height": 900})
                await page.screenshot(path=f"{folder}/report-{span}-{scheme}.png")
                await page.set_viewport_size({"width": 360, "height": 900})
                await page.screenshot(path=f"{folder}/report-{span}-{scheme}-phone.png")
