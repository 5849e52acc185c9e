"""Acts in a real Chromium: asked with their consequence, done, taken back, refused at their field."""

from __future__ import annotations

import re

from tests.unit.controller.conftest import FakeAgent
from tests.unit.controller.web.chromium.person import SECOND, Person, expect
from tests.unit.controller.web.effects import RUN, prepare
from tests.unit.controller.web.test_acts import list_told


async def test_a_queue_is_paused_and_taken_back_and_both_name_the_person(
    person: Person, agent: FakeAgent
) -> None:
    for name in ("a", "b", "c"):
        await person.served.call("PUT", f"/v1/queues/{name}", json={})
    page = await person.sign_in()
    await page.goto(f"{person.base}/queues")
    row = page.locator("#queue-a")
    await row.get_by_text("Pause").click()
    await expect(page.locator("#dialog-text")).to_contain_text("No job of it starts")
    await page.fill("#dialog-reason input", "a while")
    await page.click("#dialog-yes")
    await expect(row).to_contain_text("a while", timeout=SECOND)
    await expect(page.locator("#told")).to_contain_text("Pause queue a: done.")
    await page.click("#undo")
    await expect(row.locator(".state")).to_have_text("open", timeout=SECOND)
    for name in ("b", "c"):
        await page.check(f"#queue-{name} [data-pick]")
    await page.mouse.move(5, 5)  # a row above the pointer does not grow
    await person.served.call("POST", "/v1/queues/a/pause", json={"reason": "another hand"})
    await expect(row).to_contain_text("another hand", timeout=SECOND)  # read anew, and still chosen
    await page.get_by_role("button", name="Pause…").click()
    await expect(page.locator("#dialog-title")).to_have_text("Pause 2 queues")
    await expect(page.locator("#dialog-text")).to_contain_text("b, c.")
    await page.fill("#dialog-reason input", "the night")
    await page.click("#dialog-yes")
    await expect(page.locator("#told")).to_contain_text("Pause: 2 of 2 queues.")
    await page.click("#undo")
    for name in ("b", "c"):
        await expect(page.locator(f"#queue-{name} .state")).to_have_text("open", timeout=SECOND)
    told = [(each["kind"], each["queue"]) for each in await list_told(person.served)]
    for name in ("a", "b", "c"):
        assert told.index(("queue.paused", name)) < told.index(("queue.resumed", name))


async def test_hosts_are_drained_and_released_together_chosen_or_all_that_match(
    person: Person,
) -> None:
    for name in ("a1", "a2", "b1", "b2"):
        assert (await FakeAgent(person.served, name).register()).status_code == 200
    page = await person.sign_in()
    await page.goto(f"{person.base}/hosts")
    for name in ("a1", "a2", "b1"):
        await page.check(f"[data-pick][aria-label={name}]")
    await page.get_by_role("button", name="Drain…", exact=True).click()
    await expect(page.locator("#dialog-title")).to_have_text("Drain 3 hosts")
    await expect(page.locator("#dialog-text")).to_contain_text("a1, a2, b1. The host gets no new")
    await page.fill("#dialog-reason input", "new cables")
    await page.fill("#dialog [name=deadline_seconds]", "600")
    await page.click("#dialog-yes")
    await expect(page.locator("#told")).to_contain_text("Drain: 3 of 3 hosts.", timeout=SECOND)
    rows = page.locator("#hosts tr")
    await expect(rows.filter(has_text="new cables")).to_have_count(3, timeout=SECOND)
    found = (await person.served.call("GET", "/v1/hosts/a1")).json()
    assert (found["state"], found["drain_deadline"] is not None) == ("draining", True)
    await page.click("#undo")
    await expect(rows.filter(has_text="active")).to_have_count(4, timeout=SECOND)
    await page.goto(f"{person.base}/hosts?q=a")
    await page.get_by_role("button", name="Quarantine…").click()
    await expect(page.locator("#dialog-title")).to_have_text("Quarantine 2 hosts", timeout=SECOND)
    await expect(page.locator("#dialog-text")).to_contain_text("All that match: a1, a2.")
    await page.click("#dialog-yes")
    await expect(page.locator("#told")).to_contain_text("2 of 2 hosts.", timeout=SECOND)
    await page.goto(f"{person.base}/hosts")
    await page.get_by_role("button", name="Release…").click()
    await expect(page.locator("#dialog-title")).to_have_text("Release 2 hosts", timeout=SECOND)
    await page.click("#dialog-yes")
    await expect(rows.filter(has_text="active")).to_have_count(4, timeout=SECOND)


async def test_a_job_is_run_again_with_changes_and_a_refusal_stands_at_its_field(
    person: Person, agent: FakeAgent
) -> None:
    argv = ["python", "train.py", "--note", "it's $HOME"]
    job = await person.served.submit(
        name="train", argv=argv, env={"LR": "1", "KEEP": "x=y"}, secrets={"KEY": "hush"}
    )
    page = await person.sign_in("submit")
    await page.goto(f"{person.base}/jobs/{job['id']}")
    await page.click("text=Run again with changes")
    await expect(page.locator("h1")).to_have_text("Run train again")
    await page.fill("[name=gpus]", "64")
    await page.get_by_role("button", name="Submit").click()
    said = page.locator("label:has([name=gpus]) .said")
    await expect(said).to_contain_text("64 GPUs", timeout=SECOND)
    await page.fill("[name=gpus]", "0")
    await page.fill("[name=env]", "LR=2\nKEEP=x=y")
    await page.fill("[name=secrets]", "KEY=hush again")
    await page.fill("[name='retry.max_retries']", "3")
    await page.get_by_role("button", name="Submit").click()
    await page.wait_for_url(lambda url: "/again" not in url and job["id"] not in url)
    made = await person.served.job(page.url.rpartition("/")[2])
    assert made["spec"]["argv"] == argv
    assert made["spec"]["env"] == {"LR": "2", "KEEP": "x=y"}
    assert made["spec"]["retry"]["max_retries"] == 3
    assert (made["name"], list(made["spec"]["secrets"])) == ("train", ["KEY"])


async def test_a_secret_is_shown_once_and_a_refusal_stays_in_the_dialog(
    person: Person, agent: FakeAgent
) -> None:
    page = await person.sign_in()
    await page.goto(f"{person.base}/settings?q=history_days")
    await page.click("text=New token")
    await page.fill("#dialog [name=name]", "spare")
    await page.click("#dialog-yes")
    await expect(page.locator("#dialog-shown")).to_contain_text("hft_", timeout=SECOND)
    await page.click("text=Leave it")
    await expect(page.locator("#tokens")).to_contain_text("spare", timeout=SECOND)
    change = page.locator("#config").get_by_text("Change")
    await change.click()
    await page.fill("#dialog [name='set.history_days']", "soon")
    await page.click("#dialog-yes")
    await expect(page.locator("#dialog-said")).to_contain_text("history_days", timeout=SECOND)
    await page.fill("#dialog [name='set.history_days']", "40")
    await page.click("#dialog-yes")
    await expect(page.locator("#config")).to_contain_text("tester", timeout=SECOND)
    await page.click("#undo")
    await expect(page.locator("#config")).not_to_contain_text("tester", timeout=SECOND)


async def test_a_node_is_opened_in_the_graph_and_its_question_answered(
    person: Person, agent: FakeAgent
) -> None:
    await prepare(person.served, agent)
    page = await person.sign_in("submit")
    await page.goto(f"{person.base}/workflows/{RUN}")
    await page.get_by_role("button", name="Answer").click(timeout=4 * SECOND)
    await page.fill("#dialog [name=answer]", "yes, on")
    await page.click("#dialog-yes")
    await expect(page.locator("#head .state")).to_have_text("succeeded", timeout=4 * SECOND)
    await page.click("#graph a")
    await expect(page.locator("#node")).to_contain_text("yes, on")
    await expect(page.get_by_role("button", name="Restart from here")).to_be_visible()


async def test_a_list_is_completed_kept_sorted_and_searched(
    person: Person, agent: FakeAgent
) -> None:
    for name in ("beta", "alpha"):
        await person.served.submit(name=name)
    page = await person.sign_in("read")
    await page.goto(f"{person.base}/jobs?q=state:queued+state:reserved")
    field = page.get_by_label("Filter", exact=True)
    await field.fill("state:queued que")
    offered = page.locator("#words option[value='state:queued queue:cpu']")
    await expect(offered).to_have_count(1, timeout=SECOND)
    await page.get_by_text("Keep this view…").click()
    await page.fill("#dialog [name=name]", "what waits")
    await page.click("#dialog-yes")
    await page.goto(f"{person.base}/jobs")
    await page.click("#saved a")
    await page.wait_for_url(re.compile("state"))
    await page.get_by_role("button", name="Job", exact=True).click()
    names = page.locator("#rows td:nth-child(3) a")
    assert await names.all_text_contents() == ["alpha", "beta"]
    await page.get_by_role("button", name="Job", exact=True).click()
    assert await names.all_text_contents() == ["beta", "alpha"]
    for figures in (
        ["850 ms", "24.1 min", "12 h 04 m", "3\u2009200 h", "140 d 2 h"],
        ["900 B", "1.2 KiB", "3 MiB", "1.1 GiB"],
        ["$0.40", "$12.00", "$3\u2009200"],
        ["2 of 8", "6 of 4", "45 %", "a", "h1"],
    ):
        read = await page.evaluate("(texts) => texts.map(readFigure)", figures)
        assert read == sorted(read, key=lambda each: (isinstance(each, str), each))
        assert len(set(map(str, read))) == len(figures)
    await page.fill("#search", "H1")
    await page.press("#search", "Enter")
    await page.wait_for_url(re.compile("/hosts/h1"))
    await page.fill("#search", "a")
    await page.press("#search", "Enter")
    await expect(page.locator("h1")).to_have_text("Found for “a”")
    await expect(page.locator("main")).to_contain_text("alpha")
