"""The dashboard in a real Chromium (`make browser`): what a person sees and does, what a page of a job
cannot do, and that no page asks another server for anything."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from holdfast.controller.server import RunningServer, bind_socket
from tests.simulated.blobs import MemoryBlobs
from tests.unit.controller.conftest import FakeAgent
from tests.unit.controller.web.chromium.person import SECOND, Person, expect, serve_elsewhere
from tests.unit.controller.web.effects import list_paths
from tests.waits import within

HOSTILE = "<img src=x onerror=alert(1)>\u202eabc"


async def test_a_link_signs_in_leaves_the_address_and_works_once(person: Person) -> None:
    link = await person.link()
    page = await person.open()
    await page.goto(link)
    await page.wait_for_url(f"{person.base}/")
    await expect(page.locator("#live")).to_have_text("live", timeout=SECOND)
    assert link.partition("#")[2] not in await page.evaluate("performance.now() && location.href")
    other = await person.chromium.new_context()
    second = await other.new_page()
    await second.goto(link)
    await expect(second.locator("#said")).to_contain_text("was used", timeout=SECOND)
    await other.close()


async def test_a_page_is_light(person: Person, agent: FakeAgent) -> None:
    """At most five requests and 200 kB, and of script and style 25 kB, as they travel."""
    for n in range(50):
        await person.served.submit(name=f"job-{n}")
    page = await person.sign_in()
    sizes: dict[str, int] = {}

    async def weigh(response: Any) -> None:
        if not response.url.endswith("/live"):
            sizes[response.url] = int((await response.all_headers())["content-length"])

    fresh = await person.open()
    fresh.on("response", lambda response: asyncio.ensure_future(weigh(response)))
    await fresh.goto(f"{person.base}/jobs")
    await expect(fresh.locator("tbody tr")).to_have_count(50)
    assert len(sizes) <= 5
    assert sum(sizes.values()) <= 200_000
    assert 10_000 < sum(size for url, size in sizes.items() if "/static/" in url) <= 25_000
    await page.close()


async def test_no_page_takes_more_than_five_requests(person: Person, agent: FakeAgent) -> None:
    """Besides the one stream of changes that all pages of a browser share, and what a page reads anew
    after a change."""
    paths = await list_paths(person.served, agent)
    page = await person.sign_in()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(person.base)))
    counts = {}
    for path in paths:
        asked.clear()
        await page.goto(person.base + path)
        await expect(page.locator("#live")).to_have_text("live", timeout=4 * SECOND)
        await page.evaluate("() => new Promise((done) => requestIdleCallback(done))")
        counts[path] = set(asked) - {"/live"}
    assert {path: urls for path, urls in counts.items() if len(urls) > 5} == {}


async def test_new_rows_come_into_a_list_that_is_only_looked_at(person: Person) -> None:
    await person.served.submit(name="first")
    page = await person.sign_in()
    await page.goto(f"{person.base}/jobs")
    await expect(page.locator("#live")).to_have_text("live", timeout=SECOND)
    await person.served.submit(name="second")
    await expect(page.locator("tbody tr")).to_have_count(2, timeout=SECOND)
    await expect(page.locator("#news")).to_be_hidden()


async def test_new_rows_are_announced_and_changes_come_in_place(
    person: Person, agent: FakeAgent
) -> None:
    job = await person.served.submit(name="first")
    page = await person.sign_in()
    await page.goto(f"{person.base}/jobs")
    row = page.locator(f"#job-{job['id']}")
    await expect(row.locator(".state")).to_have_text(re.compile("queued|reserved"))
    await expect(page.locator("#live")).to_have_text("live", timeout=SECOND)
    await row.hover()
    await person.served.submit(name="second")
    await expect(page.locator("#show-news")).to_have_text("1 new", timeout=SECOND)
    assert await page.locator("tbody tr").count() == 1
    order = await agent.take()
    await agent.sync(agent.running(order))
    await expect(row.locator(".state")).to_have_text("running", timeout=SECOND)
    await page.click("#show-news")
    await expect(page.locator("tbody tr")).to_have_count(2)


async def test_a_job_is_cancelled_after_its_consequence_was_read(person: Person) -> None:
    job = await person.served.submit(name="train")
    page = await person.sign_in("submit")
    await page.goto(f"{person.base}/jobs/{job['id']}")
    await page.click("text=Cancel")
    await expect(page.locator("#dialog-text")).to_contain_text("does not start again")
    await page.click("text=Leave it")
    assert (await person.served.job(job["id"]))["state"] == "queued"
    await page.click("text=Cancel")
    await page.fill("#dialog-reason input", "wrong data")
    await page.click("#dialog-yes")
    await expect(page.locator("#head .state")).to_have_text("cancelled", timeout=SECOND)
    found = await person.served.job(job["id"])
    assert "wrong data" in found["reason"]


async def test_all_that_match_are_cancelled_with_one_reason(person: Person) -> None:
    for n in range(60):
        await person.served.submit(name=f"sweep-{n}")
    kept = await person.served.submit(name="other")
    page = await person.sign_in()
    await page.goto(f"{person.base}/jobs?q=sweep")
    await page.click("#bulk .stop")
    await expect(page.locator("#dialog-title")).to_have_text("Cancel 60 jobs")
    await expect(page.locator("#dialog-text")).to_contain_text("and 55 more")
    await page.fill("#dialog-reason input", "a typo in the sweep")
    await page.click("#dialog-yes")
    async with within(20):
        while True:
            answer = await person.served.call("GET", "/v1/jobs?state=cancelled&limit=100")
            if len(answer.json()["items"]) == 60:
                break
            await asyncio.sleep(0.1)
    assert (await person.served.job(kept["id"]))["state"] == "queued"


async def test_what_a_job_says_is_text(person: Person, agent: FakeAgent) -> None:
    job = await person.served.submit(name=HOSTILE, labels={"team": HOSTILE})
    order = await agent.take()
    await agent.sync(agent.running(order))
    bomb = b"\x1b[31m" * 2000 + b"<script>alert(1)</script>\x1b[0m\n" + b"\x1b]0;t\x07\x07"
    await agent.send_log(order.key, bomb + "\U0001f600 \u202eabc\n".encode())
    page = await person.sign_in()
    page.on("dialog", lambda dialog: person.wrong.append(dialog.message))
    await page.goto(f"{person.base}/jobs/{job['id']}")
    await expect(page.locator("#log")).to_contain_text("<script>alert(1)</script>", timeout=SECOND)
    await expect(page.locator("#log")).to_contain_text("\U0001f600 \ufffdabc")
    assert await page.locator("main img, main script").count() == 0


async def test_a_lost_controller_is_said_and_nothing_is_missed(
    person: Person, agent: FakeAgent
) -> None:
    page = await person.sign_in()
    await page.goto(f"{person.base}/jobs")
    await expect(page.locator("#live")).to_have_text("live", timeout=SECOND)
    running, port = person.served.running, int(person.base.rpartition(":")[2])
    await running.stop()
    await expect(page.locator("#live")).to_have_text("no connection", timeout=SECOND)
    again = RunningServer(person.served.store, bind_socket("127.0.0.1", port), blobs=MemoryBlobs())
    await again.start()
    person.served.running, person.served.controller = again, again.controller
    job = await person.served.submit(name="meanwhile")
    await expect(page.locator("#live")).to_have_text("live", timeout=2 * SECOND)
    await expect(page.locator(f"#job-{job['id']}")).to_be_visible(timeout=SECOND)
    await again.stop()


async def test_twelve_tabs_share_one_stream(person: Person) -> None:
    job = await person.served.submit(name="shared")
    first = await person.sign_in()
    tabs = [first, *[await person.open() for _ in range(11)]]
    for tab in tabs:
        await tab.goto(f"{person.base}/jobs/{job['id']}?tab=spec")
    for tab in tabs:
        await expect(tab.locator("#live")).to_have_text("live", timeout=SECOND)
    before = person.lives
    await person.served.call("POST", f"/v1/jobs/{job['id']}/cancel", json={})
    for tab in tabs:
        await expect(tab.locator("#head .state")).to_have_text("cancelled", timeout=2 * SECOND)
    assert person.lives == before  # no tab had to open a stream of its own for it


async def test_a_forwards_server_gets_no_cookie_and_can_do_nothing(person: Person) -> None:
    job = await person.served.submit(name="mine")
    target = f"{person.base}/v1/jobs/{job['id']}/cancel"
    page_of_job = (
        f"<title>t</title><a href='{person.base}/jobs/{job['id']}'>to the job</a><script>"
        f"fetch('{target}', {{method: 'POST', credentials: 'include', body: '{{}}'}})"
        ".catch(() => 0).finally(() => document.title = 'done')</script>"
    )
    signed = await person.sign_in()
    page = await person.context.new_page()
    async with serve_elsewhere(page_of_job) as (port, heads):
        await page.goto(f"http://127.0.0.1:{port}/elsewhere")
        await page.wait_for_function("document.title === 'done'")
        assert "cookie" not in "".join(heads).lower()
    assert (await person.served.job(job["id"]))["state"] == "queued"
    # A link there works all the same: the page that it opens reads itself once more.
    await page.click("text=to the job")
    await expect(page.locator("h1")).to_have_text("mine", timeout=SECOND)
    await signed.close()


async def test_a_reader_has_no_buttons(person: Person, agent: FakeAgent) -> None:
    job = await person.served.submit()
    page = await person.sign_in("read")
    for path in (f"/jobs/{job['id']}", "/hosts/h1", "/queues", "/jobs"):
        await page.goto(person.base + path)
        assert await page.locator("[data-act], [data-bulk]").count() == 0, path


async def test_keys_move_choose_and_open(person: Person) -> None:
    for name in ("one", "two"):
        await person.served.submit(name=name)
    page = await person.sign_in()
    await page.goto(f"{person.base}/jobs")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    assert await page.locator("tr.cursor input").is_checked()
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("one")
    await page.keyboard.press("/")
    await expect(page.locator("#search")).to_be_focused()


async def test_a_browser_signs_out(person: Person) -> None:
    page = await person.sign_in()
    await page.goto(f"{person.base}/settings")
    await page.click("#sign-out")
    await page.wait_for_url(re.compile("/sign-in$"))
    await page.goto(f"{person.base}/jobs")
    await page.wait_for_url(re.compile("/sign-in$"))


def test_the_pages_hold_no_address_of_another_server() -> None:
    folder = Path(__file__).parents[5] / "src" / "holdfast" / "web"
    for path in [each for each in folder.rglob("*") if each.suffix in (".html", ".js", ".css")]:
        assert not re.search(r"(?:src|href|url)\W{1,3}https?://", path.read_text()), path.name
