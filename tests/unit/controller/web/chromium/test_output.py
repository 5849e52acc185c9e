"""The output of a job in a real Chromium: followed, paused, searched and read back."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from tests.unit.controller.conftest import FakeAgent
from tests.unit.controller.web.chromium.person import SECOND, Person, expect

NUL_AND_MORE = b"\x00\x1b[5m\x1b]8;;http://x\x07link\x1b]8;;\x07 <b>bold</b> \xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d \xf0\x9f\x98\x80"


class Writer:
    """A rank that prints lines."""

    def __init__(self, agent: FakeAgent, key: Any) -> None:
        self.agent, self.key, self.size, self.lines = agent, key, 0, 0

    async def write(self, data: bytes) -> None:
        answer = await self.agent.send_log(self.key, data, self.size)
        assert answer.status_code == 200, answer.text
        self.size += len(data)

    async def count(self, lines: int) -> None:
        """Print lines that are numbered on from the last ones."""
        numbers = range(self.lines, self.lines + lines)
        self.lines += lines
        await self.write(b"".join(b"step %d of many\n" % n for n in numbers))


async def start(person: Person, agent: FakeAgent) -> tuple[str, Writer]:
    job = await person.served.submit(name="writer")
    order = await agent.take()
    await agent.sync(agent.running(order))
    return job["id"], Writer(agent, order.key)


async def test_what_comes_while_one_reads_waits_and_a_click_follows_again(
    person: Person, agent: FakeAgent
) -> None:
    job, writer = await start(person, agent)
    page = await person.sign_in()
    await page.goto(f"{person.base}/jobs/{job}")
    await writer.count(200)
    log, pill = page.locator("#log"), page.locator("#follow")
    await expect(log).to_contain_text("step 199 of many", timeout=SECOND)
    await expect(pill).to_be_hidden()
    assert await log.evaluate("l => l.scrollHeight - l.scrollTop - l.clientHeight") < 2
    await log.evaluate("l => { l.scrollTop = 900; }")
    await expect(pill).to_be_visible(timeout=SECOND)
    seen = await log.evaluate("l => [l.scrollTop, l.innerText]")
    await writer.count(70)
    await expect(pill).to_have_text("70 new lines · Follow ↓", timeout=SECOND)
    assert await log.evaluate("l => [l.scrollTop, l.innerText]") == seen, "nothing moves"
    await pill.click()
    await expect(log).to_contain_text("step 269 of many", timeout=SECOND)
    await expect(pill).to_be_hidden()
    numbers = await log.evaluate(
        "l => [...l.children].map(r => Number(r.textContent.match(/step (\\d+)/)[1]))"
    )
    assert numbers == list(range(270)), "none is missed and none is twice"


async def test_a_search_is_answered_by_the_server_and_a_click_goes_to_the_place(
    person: Person, agent: FakeAgent
) -> None:
    job, writer = await start(person, agent)
    await writer.count(4000)
    await writer.write(b"\x1b[31mLoss is NaN <here> " + NUL_AND_MORE + b"\n")
    for _ in range(3):
        await writer.count(4000)
    page = await person.sign_in()
    await page.goto(f"{person.base}/jobs/{job}?find=loss+is+nan")
    found = page.locator("#found a.found")
    await expect(found).to_have_count(1, timeout=SECOND)
    await expect(found).to_contain_text("Loss is NaN <here> \ufffdlink <b>bold</b>")
    await expect(page.locator("#found-note")).to_contain_text("1 line matches", timeout=SECOND)
    await expect(page.locator("#log")).not_to_contain_text("Loss is NaN")
    await found.click()
    await expect(page.locator("#log .here")).to_contain_text("Loss is NaN <here>", timeout=SECOND)
    await expect(page.locator("#log .here")).to_be_in_viewport()
    around = await page.locator("#log").inner_text()
    assert "step 3999 of many" in around
    assert "step 4000 of many" in around
    assert "line=" in page.url
    await page.reload()
    await expect(page.locator("#log .here")).to_be_in_viewport(timeout=SECOND)
    await page.click("#follow")
    await expect(page.locator("#log")).to_contain_text("step 15999 of many", timeout=SECOND)


async def test_earlier_lines_come_as_one_scrolls_back(person: Person, agent: FakeAgent) -> None:
    job, writer = await start(person, agent)
    for _ in range(4):
        await writer.count(2000)
    page = await person.sign_in()
    await page.goto(f"{person.base}/jobs/{job}")
    log = page.locator("#log")
    await expect(log).to_contain_text("step 7999 of many", timeout=SECOND)
    numbers = "l => [...l.children].map(r => Number(r.textContent.match(/step (\\d+)/)[1]))"
    first = (await log.evaluate(numbers))[0]
    assert first > 1000
    for _ in range(40):
        before = (await log.evaluate(numbers))[0]
        if before == 0:
            break
        await log.evaluate("l => { l.scrollTop = 1; l.scrollTop = 0; }")
        await page.wait_for_function(
            "n => Number(document.querySelector('#log').firstChild.textContent.match(/step (\\d+)/)[1]) < n",
            arg=before,
        )
    shown = await log.evaluate(numbers)
    assert shown == list(range(len(shown)))
    assert len(shown) <= 3000


async def test_a_flood_and_a_line_of_megabytes_freeze_no_page(
    person: Person, agent: FakeAgent
) -> None:
    """OUTPUT-1."""
    job, writer = await start(person, agent)
    page = await person.sign_in()
    await page.goto(f"{person.base}/jobs/{job}")
    await page.evaluate(
        "() => { window.longest = 0; let last = performance.now(); const look = () => {"
        " const now = performance.now(); window.longest = Math.max(window.longest, now - last);"
        " last = now; setTimeout(look, 20); }; look(); }"
    )
    for _ in range(10):
        await writer.write(b"x" * (1 << 20))
    await writer.write(b" the end of it\n")
    for _ in range(40):
        await writer.count(4000)
    log = page.locator("#log")
    await expect(log).to_contain_text(f"step {writer.lines - 1} of many", timeout=4 * SECOND)
    assert await log.evaluate("l => l.childElementCount") <= 3000
    assert await page.evaluate("window.longest") < 2000, (
        "milliseconds in which the page answered nothing"
    )
    await page.goto(f"{person.base}/jobs/{job}?find=the+end+of+it")
    await page.locator("#found a.found").click(timeout=2 * SECOND)
    await expect(log).to_contain_text("10,485,774 bytes in this line", timeout=2 * SECOND)


async def test_more_pages_than_a_browser_has_connections_all_follow(
    person: Person, agent: FakeAgent
) -> None:
    job, writer = await start(person, agent)
    tabs = [await person.sign_in(), *[await person.open() for _ in range(7)]]
    for tab in tabs:
        await tab.goto(f"{person.base}/jobs/{job}")
    await writer.count(3)
    await asyncio.gather(
        *[
            expect(tab.locator("#log")).to_contain_text("step 2 of many", timeout=2 * SECOND)
            for tab in tabs
        ]
    )
    await writer.count(3)
    await asyncio.gather(
        *[
            expect(tab.locator("#log")).to_contain_text("step 5 of many", timeout=2 * SECOND)
            for tab in tabs
        ]
    )
    assert [await tab.locator("#log > div").count() for tab in tabs] == [6] * 8


async def test_a_click_on_a_bar_shows_only_what_came_in_its_time(
    person: Person, agent: FakeAgent
) -> None:
    job, writer = await start(person, agent)
    await writer.count(20)
    page = await person.sign_in()
    await page.goto(f"{person.base}/jobs/{job}")
    await expect(page.locator("#log")).to_contain_text("step 19 of many", timeout=SECOND)
    # Where the job waited nothing was printed, and where it ran all lines were.
    for bar, lines in ((0, 0), (-1, 20)):
        await page.locator("#timeline .bars a").nth(bar).focus()
        await page.keyboard.press("Enter")
        await page.wait_for_url(re.compile("begin="))
        await expect(page.locator("#log > div")).to_have_count(lines, timeout=SECOND)
        await page.click("text=Show all")
        await expect(page.locator("#log > div")).to_have_count(20, timeout=SECOND)
        await page.goto(f"{person.base}/jobs/{job}?tab=events")
        await page.goto(f"{person.base}/jobs/{job}")
