"""Every page, as a user of each role gets it, with what hostile jobs put into it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.fleet.actions import CycleActions, CycleSummary
from holdfast.core.gpus import Gpu
from holdfast.errors import Unavailable
from holdfast.web.page import make_request
from holdfast.web.pages import find, hosts, jobs, now
from holdfast.web.pages.job import output
from holdfast.web.pages.operate.pools import join_alike
from holdfast.web.reader import ApiReader
from holdfast.web.words import write_told
from tests.unit.controller.conftest import FakeAgent, Served
from tests.unit.controller.web.conftest import Browser
from tests.unit.controller.web.effects import open_cluster
from tests.waits import within

PLACES = (
    "/", "/jobs", "/hosts", "/hosts/h1", "/queues", "/pools", "/workflows", "/calls", "/schedules",
    "/events", "/report", "/settings", "/find?q=none",
)  # fmt: skip
HOSTILE = "<script>alert(1)</script>\u202e\"'&"


@pytest.mark.parametrize("role", ["read", "submit", "admin"])
async def test_every_page_is_there_for_every_role(
    served: Served, agent: FakeAgent, role: str
) -> None:
    job = await served.submit(labels={"team": "nlp"})
    browser = Browser(served)
    await browser.sign_in(role)
    tabs = [
        f"/jobs/{job['id']}?tab={tab}"
        for tab in ("output", "ranks", "readings", "stacks", "files", "spec")
    ]
    for path in (*PLACES, f"/jobs/{job['id']}", f"/jobs/{job['id']}?tab=events", *tabs):
        answer = await browser.send("GET", path)
        assert answer.status_code == 200, (path, answer.text)
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert not re.search(r"\son\w+=|\sstyle=|javascript:", answer.text), path
    page = (await browser.send("GET", f"/jobs/{job['id']}")).text
    assert ("/cancel" in page) == (role != "read")
    page = (await browser.send("GET", "/hosts/h1")).text
    assert ("/drain" in page) == (role == "admin")


async def test_what_a_job_says_is_never_markup(
    served: Served, agent: FakeAgent, browser: Browser
) -> None:
    job = await served.submit(name=HOSTILE, labels={"team": HOSTILE}, argv=["echo", HOSTILE])
    for path in ("/", "/jobs", f"/jobs/{job['id']}", f"/jobs/{job['id']}?tab=spec"):
        text = (await browser.send("GET", path)).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text
    answer = await browser.send("GET", "/jobs", params={"q": HOSTILE})
    assert "<script>alert" not in answer.text


async def test_the_output_is_lines_that_come(
    served: Served, agent: FakeAgent, browser: Browser
) -> None:
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    await agent.send_log(order.key, b"\x1b[31mred\x1b[0m <b>x</b>\nnext\n")
    headers = {
        "Host": browser.origin.partition("://")[2],
        "Cookie": browser.cookie,
        "Holdfast-Proof": browser.proof,
    }
    heard = ""
    path = f"/jobs/{job['id']}/output"
    async with within(20), served.http.stream("GET", path, headers=headers) as stream:
        async for piece in stream.aiter_text():
            heard += piece
            if "next" in heard and "event: end" not in heard:
                await agent.send_log(
                    order.key, b"", len(b"\x1b[31mred\x1b[0m <b>x</b>\nnext\n"), True
                )
                await agent.end(order, exit_code=0)
    assert '<span class=\\"c1\\">red</span> &lt;b&gt;x&lt;/b&gt;' in heard
    assert "event: end" in heard


async def test_what_a_job_made_is_a_download(
    served: Served, agent: FakeAgent, browser: Browser
) -> None:
    job = await served.submit()
    order = await agent.take()
    await agent.send_log(order.key, b"<script>alert(1)</script>\n")
    answer = await browser.send("GET", f"/jobs/{job['id']}/download/log?rank=0&stream=stdout")
    assert answer.content == b"<script>alert(1)</script>\n"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["content-security-policy"].startswith("sandbox")
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_what_is_not_there_is_said(browser: Browser) -> None:
    for path in ("/jobs/06ch2v8wq1m4kz7d9x3t", "/hosts/none", "/jobs/06ch2v8wq1m4kz7d9x3t?tab=x"):
        answer = await browser.send("GET", path)
        assert answer.status_code == 404
        assert "<h1>Not found</h1>" in answer.text
        assert 'action="/find"' in answer.text, "what was meant may be looked for"


async def test_an_address_of_nothing_is_a_page_for_a_person_and_a_problem_for_a_program(
    browser: Browser,
) -> None:
    visit = {"Sec-Fetch-Dest": "document"}
    page = await browser.send("GET", "/job", headers=visit)
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "there is no page /job" in page.text
    for path, headers in (("/job", {}), ("/v1/job", visit)):
        answer = await browser.send("GET", path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_path")
    assert (await browser.send("GET", "/healthz", headers=visit)).text.startswith("{")


async def test_a_cluster_that_does_not_answer_has_a_page_that_looks_again(
    served: Served, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise Unavailable("the database does not answer")

    monkeypatch.setattr(ApiReader, "pools", refuse)
    page = await browser.send("GET", "/pools", headers={"Sec-Fetch-Dest": "document"})
    assert page.status_code == 503
    assert "<h1>The cluster does not answer now</h1>" in page.text
    assert 'http-equiv="refresh"' in page.text


async def test_a_filter_finds_and_says_what_it_does_not_know(
    served: Served, browser: Browser
) -> None:
    await served.submit(name="train-a", gpus=0)
    await served.submit(name="other")
    page = (await browser.send("GET", "/jobs", params={"q": "queue:cpu train"})).text
    assert "train-a" in page
    assert ">other<" not in page
    await served.submit(name="third", queue="gpu", gpus=1)
    for words, found in (
        ("name:train-a name:other", {"train-a", "other"}),
        ("name:train-a name:other name:third queue:cpu queue:none", {"train-a", "other"}),
        ("queue:gpu queue:cpu name:third name:other", {"third", "other"}),
        ("owner:ada owner:@me", {"train-a", "other", "third"}),
        ("project:default project:none name:third", {"third"}),
    ):
        page = (await browser.send("GET", "/jobs", params={"q": words})).text
        assert set(re.findall(r'<a href="/jobs/[^"?]+">([^<]+)</a>', page)) == found, words
    page = (await browser.send("GET", "/jobs", params={"q": "colour:red"})).text
    assert "filters nothing" in page


async def test_a_word_leads_to_the_one_thing_that_it_means(
    served: Served, agent: FakeAgent, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await served.submit(name="alpha")
    await served.submit(name="alphabet")
    meant = {"H1": "/hosts/h1", "gpu": "/jobs?q=queue:gpu", "Alpha": f"/jobs/{job['id']}"}
    for word in (job["id"], agent.host_id[:19]):
        meant[word] = f"/jobs/{job['id']}" if word == job["id"] else "/hosts/h1"
    for word, page in meant.items():
        answer = await browser.send("GET", "/find", params={"q": word})
        assert (answer.status_code, answer.headers.get("location")) == (303, page)
    for word, found in (("alph", 2), ("none", 0)):
        answer = await browser.send("GET", "/find", params={"q": word})
        assert (answer.status_code, answer.text.count('id="job-')) == (200, found)
    monkeypatch.setattr(find, "SHOWN_JOBS", 2)
    answer = await browser.send("GET", "/find", params={"q": "alpha"})
    assert answer.status_code == 200, "older jobs, which are not read, may have the name too"


async def test_all_hosts_that_match_are_sent_with_the_acts_that_they_take(
    served: Served, agent: FakeAgent, browser: Browser
) -> None:
    await served.call("POST", "/v1/hosts/h1/drain", json={"reason": "cables"})
    await FakeAgent(served, "other").register()
    params = {"q": "h1"}
    assert (await browser.send("GET", "/find/hosts", params=params)).status_code == 401
    (item,) = (await browser.send("GET", "/find/hosts", proof=True, params=params)).json()["items"]
    assert (item["id"], item["name"]) == (agent.host_id, "h1")
    assert list(item["takes"]) == ["Undrain", "Quarantine"]
    answer = await browser.send("GET", "/find/hosts", proof=True, params={"q": "colour:red"})
    assert "filters nothing" in answer.json()["detail"]


async def test_the_first_hosts_shown_are_those_in_trouble_and_all_are_counted(
    served: Served, agent: FakeAgent, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "SHOWN_HOSTS", 2)
    monkeypatch.setattr(now, "SHOWN_TILES", 1)
    for name in ("h2", "h3", "h4"):
        await FakeAgent(served, name, gpus=[Gpu(index=0)]).register()
    await served.call("POST", "/v1/hosts/h4/quarantine", json={"reason": "cables"})
    page = (await browser.send("GET", "/hosts")).text
    assert re.findall(r'<a href="/hosts/(h\d)">', page) == ["h4", "h1"]
    for told in ("All 4<", "Active 3<", "Quarantined 1<", "1–2 of 4"):
        assert told in page
    page = (await browser.send("GET", "/hosts", params={"page": "2"})).text
    assert re.findall(r'<a href="/hosts/(h\d)">', page) == ["h2", "h3"]
    page = (await browser.send("GET", "/")).text
    assert re.findall(r'<a href="/hosts/(h\d)"\s+title', page) == ["h2", "h4"]
    for told in ("0 of 3<", "1 unfit", "0 of 16<", "These are 2 of the hosts"):
        assert told in page


async def test_fixed_files_are_small_and_kept(browser: Browser) -> None:
    page = (await browser.send("GET", "/jobs")).text
    files = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert len(files) <= 4
    for path in files:
        answer = await browser.send("GET", path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert (await browser.send("GET", "/static/../app.py")).status_code in (404, 421)


def test_cycles_that_did_the_same_one_after_the_other_are_one_row() -> None:
    at = datetime(2026, 11, 27, 8, tzinfo=UTC)

    def make(seconds: int, reason: str, spawned: int = 0) -> CycleSummary:
        return CycleSummary(
            timestamp=at - timedelta(seconds=seconds),
            pool="p",
            actions=CycleActions(hosts_rented=spawned),
            reasons=(reason,),
        )

    full = "pool p at its max of 2 hosts"
    told = [make(0, full), make(2, full), make(4, "spawning 1", 1), make(6, full)]
    assert [(row.count, row.newest, row.since) for row in join_alike(told)] == [
        (2, told[0], told[1].timestamp),
        (1, told[2], told[2].timestamp),
        (1, told[3], told[3].timestamp),
    ]
    held = [make(n, f"3 spawns failed; one is tried in {n} s") for n in range(9)]
    assert [row.count for row in join_alike(held)] == [9], "a time that passes is no other reason"


async def test_an_array_has_a_page_and_is_one_row_of_the_list(
    served: Served, agent: FakeAgent, browser: Browser
) -> None:
    body = {"array": "0-2", "job": {"argv": ["true"], "name": HOSTILE}}
    array = (await served.call("POST", "/v1/arrays", json=body)).json()
    plain = await served.submit(name="plain")
    listed = (await browser.send("GET", "/jobs")).text
    assert f'id="array-{array["id"]}"' in listed
    assert f'id="job-{plain["id"]}"' in listed
    assert listed.count('id="job-') == 1, "the members are folded into the array's row"
    page = await browser.send("GET", f"/jobs/{array['id']}")
    assert page.status_code == 200
    assert page.text.count('id="job-') == 3
    assert "of 3 ended" in page.text
    assert "<script>alert" not in page.text + listed
    by_label = (await browser.send("GET", "/jobs?q=label:a=b")).text
    assert "array-" not in by_label


async def test_a_pool_that_may_not_rent_is_held_and_not_ready(
    served: Served, agent: FakeAgent, browser: Browser
) -> None:
    async with open_cluster(served, agent):
        for blocked, word in (("", "ready"), ("the provider refuses the key", "held")):
            summary = CycleSummary(timestamp=datetime.now(UTC), pool="p", actions=CycleActions())
            await served.store.fleet.record_cycle(summary, blocked)
            for path in ("/pools", "/pools/p"):
                page = (await browser.send("GET", path)).text
                green = '<span class="state running">ready</span>' in page
                assert (green, blocked in page) == (word == "ready", True), path
                assert f">{word}</span>" in page, path


async def test_output_is_empty_only_once_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first frame makes the page say that nothing was printed, so it waits for the answer of the log."""
    answered = asyncio.Event()

    async def follow(source: object) -> AsyncIterator[object]:
        await answered.wait()
        yield job
        await asyncio.Event().wait()

    async def find(job_id: str) -> object:
        return job

    job = SimpleNamespace(id="j", tasks=1)
    reader: Any = SimpleNamespace(job=find, each=follow)
    ask = make_request(reader, "/jobs/j/output", {"job": "j"}, b"")
    monkeypatch.setattr(output, "KEEP_ALIVE_SECONDS", 0.01)
    async with within(20):
        frames = output.follow_output(ask)
        assert [await anext(frames) for _ in range(3)] == [b": here\n\n"] * 3
        answered.set()
        while (frame := await anext(frames)) == b": here\n\n":
            pass
        assert frame.startswith(b"event: lines")
        await frames.aclose()


async def test_why_a_job_waits_is_one_sentence_and_the_rest_is_under_more(
    served: Served, browser: Browser
) -> None:
    job = await served.submit(name="waits")
    page = (await browser.send("GET", f"/jobs/{job['id']}")).text
    why = page.partition('<section data-part id="why">')[2].partition("</section>")[0]
    told = (await served.call("GET", f"/v1/jobs/{job['id']}/why")).json()
    first, _, rest = why.partition("<details>")
    assert str(write_told(told["summary"])) in first
    assert first.count('class="lead"') == 1
    others = [line["message"] for line in told["lines"] if line["message"] != told["summary"]]
    assert others
    for message in others:
        assert str(write_told(message)) in rest
        assert str(write_told(message)) not in first


async def test_jobs_that_have_not_ended_stand_first(
    served: Served, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await served.submit(name="old")
    array = (
        await served.call("POST", "/v1/arrays", json={"array": "0-1", "job": {"argv": ["x"]}})
    ).json()
    ended = [await served.submit(name=f"ended-{n}") for n in range(3)]
    for job in ended:
        await served.call("POST", f"/v1/jobs/{job['id']}/cancel", json={})
    monkeypatch.setattr(jobs, "PAGE_JOBS", 2)

    async def read(**query: str) -> tuple[list[str], str]:
        page = (await browser.send("GET", "/jobs", params=query)).text
        older = re.search(r'cursor=([^"&]+)">Older', page)
        return re.findall(r'<tr id="\w+-([^"]+)"', page), older[1] if older else ""

    ids, older = await read()
    assert ids == [array["id"], old["id"], ended[2]["id"], ended[1]["id"]]
    assert await read(cursor=older) == ([ended[0]["id"]], "")
    assert await read(q="state:queued") == ([array["id"], old["id"]], "")
    assert (await read(q="state:cancelled"))[0] == [ended[2]["id"], ended[1]["id"]]
    newer = [await served.submit(name=f"newer-{n}") for n in range(2)]
    page = (await browser.send("GET", "/jobs")).text
    assert "state%3Aqueued" in page, "the page leads to the live jobs that it leaves out"
    ids, older = await read(q="state:queued")
    assert ids == [newer[1]["id"], newer[0]["id"]]
    assert await read(q="state:queued", cursor=older) == ([array["id"], old["id"]], "")


async def test_what_needs_a_person_is_counted_on_every_page(
    served: Served, agent: FakeAgent, browser: Browser
) -> None:
    assert "<title>Jobs" in (await browser.send("GET", "/jobs")).text
    await served.call("POST", "/v1/hosts/h1/quarantine", json={"reason": "cables"})
    page = (await browser.send("GET", "/")).text
    assert "<title>(1) Now" in page
    assert "1 thing needs you" in page
    for path in ("/jobs", "/hosts/h1"):  # the number that the first page read is kept for a moment
        page = (await browser.send("GET", path)).text
        assert "<title>(1) " in page
        assert 'class="count" title="things that need you">1<' in page


async def test_the_count_of_what_needs_a_person_is_read_anew(
    served: Served, agent: FakeAgent, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(now, "COUNT_SECONDS", 0)
    await served.call("POST", "/v1/hosts/h1/quarantine", json={"reason": "cables"})
    assert "<title>(1) Jobs" in (await browser.send("GET", "/jobs")).text
    await served.call("POST", "/v1/hosts/h1/release", json={})
    assert "<title>Jobs" in (await browser.send("GET", "/jobs")).text


async def test_settings_are_folded_and_what_is_over_stands_apart(
    served: Served, browser: Browser
) -> None:
    await served.call("PATCH", "/v1/config", json={"set": {"history_days": 40}})
    for name in ("kept", "gone"):
        body = {"name": name, "role": "read", "user": "ada"}
        made = (await served.call("POST", "/v1/tokens", json=body)).json()
    revoked = await served.call("DELETE", f"/v1/tokens/{made['id']}")
    assert revoked.is_success, revoked.text
    page = (await browser.send("GET", "/settings")).text
    config = page.partition('<section data-part id="config">')[2]
    first, *others = config.split("<details")[1:]
    assert first.startswith(" open>")
    assert "<code>history_days</code>" in first
    assert len(others) >= 3
    assert not any(each.startswith(" open") for each in others)
    tokens = page.partition('<section data-part id="tokens">')[2].partition("</section>")[0]
    in_force, _, over = tokens.partition("<details>")
    assert (">kept<" in in_force, ">kept<" in over) == (True, False)
    assert (">gone<" in in_force, ">gone<" in over) == (False, True)
    filtered = (await browser.send("GET", "/settings?q=history_days")).text
    assert "<details open>" in filtered
