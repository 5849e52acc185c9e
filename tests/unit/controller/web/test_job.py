"""The parts of a job's page: its timeline, the ranks of a gang, its files as downloads; and hosts."""

from __future__ import annotations

import hashlib
import os
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.core.bundles.manifest import FILE, FOLDER, Entry, encode_manifest
from holdfast.core.bundles.packs import head_of_pack
from holdfast.core.data.outputs import LeftOut
from holdfast.core.facts import TaskFacts
from holdfast.core.ledger.tally import Tally
from holdfast.core.records import AttemptRecord, EventRecord, JobRecord, MemberRecord
from holdfast.core.states import AttemptState, JobState, Outcome, TaskState
from holdfast.core.stragglers.records import SuspectRecord
from holdfast.web.pages.events import join_alike
from holdfast.web.pages.hosts import filter_hosts
from holdfast.web.pages.job import page as job_page
from holdfast.web.pages.job.gang import (
    RankState,
    group_ranks,
    make_grid,
    say_evidence,
    say_fall,
    view_member,
)
from holdfast.web.pages.job.timeline import draw_timeline
from holdfast.wire.api import HostView, JobView, RetryState
from holdfast.wire.data.outputs import OutputsReport, encode_report
from tests.unit.controller.conftest import FakeAgent, Served, bearer
from tests.unit.controller.web.conftest import Browser
from tests.unit.controller.why.test_limits import make_job

T0 = datetime(2026, 11, 26, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def make_attempt(number: int, begin: float, start: float, end: float, **more: Any) -> AttemptRecord:
    return AttemptRecord(
        job_id="j", number=number, parent=number - 1 or None, epoch=number, state=AttemptState.ENDED,
        outcome=Outcome.REQUEUED, reserved_at=at(begin), started_at=at(start), ended_at=at(end), **more,
    )  # fmt: skip


def make_members(count: int, **first: Any) -> tuple[MemberRecord, ...]:
    fell = MemberRecord(rank=5, host="h5", state=TaskState.FAILED, trigger=True, **first)
    return tuple(
        fell if n == 5 else MemberRecord(rank=n, host=f"h{n}", state=TaskState.FAILED, cascade=True)
        for n in range(count)
    )


def test_each_phase_of_an_attempt_has_its_bar() -> None:
    tally = Tally(
        ms={
            "setting_up": 2000,
            "loading": 8000,
            "kept": 60_000,
            "stalled": 20_000,
            "draining": 10_000,
        }
    )
    facts = TaskFacts(exit_code=1, tally=tally)
    member = MemberRecord(rank=0, host="h", state=TaskState.FAILED, facts=facts)
    first = make_attempt(1, 10, 20, 120, members=(member,), next_at=at(150))
    second = make_attempt(2, 160, 170, 180)
    job = msgspec.structs.replace(make_job(), created_at=T0, ended_at=at(180))
    one, two = draw_timeline(job, [first, second], at(500))
    assert [(bar.hue, bar.words) for bar in one.bars] == [
        ("waiting", "queued 10 s"),
        ("starting", "setting up 10 s"),
        ("starting n-loading", "loading 8 s"),
        ("running", "ran 1 m 02 s"),
        ("failed n-stalled", "silent before a watchdog's trip 20 s"),
        ("draining", "draining 10 s"),
    ]
    assert [bar.words for bar in two.bars] == [
        "backed off 30 s",
        "queued 10 s",
        "setting up 10 s",
        "ran 10 s",
    ]
    assert (two.bars[0].begin, two.bars[0].end) == (at(120), at(150)), "what a click filters by"


def test_an_attempt_that_goes_on_is_set_up_loads_and_works() -> None:
    job = msgspec.structs.replace(make_job(), created_at=T0)
    live = {"outcome": None, "ended_at": None}
    attempt = msgspec.structs.replace(
        make_attempt(1, 10, 20, 0), state=AttemptState.RUNNING, **live
    )

    def tell(job: JobRecord, **changes: Any) -> list[str]:
        (row,) = draw_timeline(job, [msgspec.structs.replace(attempt, **changes)], at(80))
        return [bar.words for bar in row.bars if bar.hue != "waiting"]

    assert tell(job, state=AttemptState.RESERVED, started_at=None) == ["setting up 1 m 10 s"]
    assert tell(job) == ["setting up 10 s", "no beat yet 1 min"]
    beats = msgspec.structs.replace(job, best_step=7)
    assert tell(beats) == ["setting up 10 s", "loading, no beat yet 1 min"]
    assert tell(beats, first_beat_at=at(50)) == ["setting up 10 s", "loading 30 s", "running 30 s"]
    stops = msgspec.structs.replace(job, drain_since=at(70))
    draining = {"state": AttemptState.DRAINING, "first_beat_at": at(50)}
    assert tell(stops, **draining) == [
        "setting up 10 s", "loading 30 s", "running 20 s", "draining 10 s"
    ]  # fmt: skip


def test_the_fall_of_a_gang_is_a_sentence() -> None:
    assert say_fall(make_members(8, message="GPU 5 fell off the bus")) == (
        "Rank 5 on h5 fell first: GPU 5 fell off the bus. Ranks 0-4, 6-7 fell with it."
    )
    assert say_fall(()) == ""


def test_ranks_of_a_large_gang_that_are_alike_share_a_row() -> None:
    ranks = [view_member(member) for member in make_members(8000, message="Xid 79", exit_code=1)]
    rows = group_ranks(ranks)
    assert [(row.ranks, row.count) for row in rows] == [("0-4, 6-7999", 7999), ("5", 1)]
    assert rows[0].hosts == "7,999 hosts"
    assert len(group_ranks(ranks[:9])) == 9


def test_ranks_that_are_far_behind_have_a_row_of_their_own() -> None:
    steps = {29: 400, 61: 404}
    ranks = [RankState(rank=n, state="running", host="h1", step=steps.get(n, 600 - n % 4)) for n in range(64)]  # fmt: skip
    rows = group_ranks(ranks)
    assert [(row.ranks, row.steps) for row in rows] == [
        ("0-28, 30-60, 62-63", (597, 600)),
        ("29, 61", (400, 404)),
    ]


@pytest.mark.parametrize(
    ("job", "state", "said"),
    [
        ({"infra_charged": 1}, {"sentence": "attempt 2 of 4 (started 3 times), running", "of": 4, "retries_left": 2},
            "1 of 3 used; 1 end charged to hosts"),
        ({}, {"sentence": "attempt 1 of 1, running", "of": 1, "retries_left": 0}, "none allowed"),
        ({"state": JobState.WAITING}, {"sentence": "attempt 1 of 3, next at 12:03:20 UTC", "of": 3, "retries_left": 1},
            "1 of 2 used; next at 12:03:20 UTC"),
        ({"attempts": 0}, {"sentence": "not started yet, up to 3 attempts", "of": 3, "retries_left": 2},
            "not started yet, up to 3 attempts"),
    ],
)  # fmt: skip
def test_retries_are_told_without_a_second_number_for_the_attempt(
    job: dict[str, Any], state: dict[str, Any], said: str
) -> None:
    view = JobView(
        **(msgspec.structs.asdict(make_job()) | job), retry_state=RetryState(attempt=1, **state)
    )
    assert job_page.say_retries(view) == said


def test_events_that_say_the_same_of_many_ranks_are_one_row() -> None:
    def event(second: float, rank: int | None, message: str = "no beat for 12 s") -> EventRecord:
        return EventRecord(id=f"e{second}", at=at(second), kind="task.tripped", job_id="j", attempt=2, rank=rank, message=message)  # fmt: skip

    rows = join_alike(
        [event(104, 3), event(103, None, "drains"), event(102, 0), event(101, 1), event(8, 1)]
    )
    assert [(row.newest.id, row.place) for row in rows] == [
        ("e104", "attempt 2, ranks 0-1, 3"),
        ("e103", "attempt 2"),
        ("e8", "attempt 2, rank 1"),
    ]
    again = join_alike([event(5, None), event(4, None), event(3, None)])
    assert [row.place for row in again] == ["attempt 2, 3 times"]


def test_the_grid_of_eight_thousand_is_small_and_the_same_while_nothing_changes() -> None:
    ranks = [
        RankState(rank=n, state="running", host=f"h{n // 8}", step=1000 - n % 3, beat_at=at(n % 4))
        for n in range(8000)
    ]
    grid = make_grid(ranks, slow=(17,))
    again = make_grid(ranks, slow=(17,), known=grid.place)
    assert again.hosts is None
    assert len(msgspec.json.encode(again)) < 50_000
    later = [
        msgspec.structs.replace(each, beat_at=each.beat_at + timedelta(seconds=5))
        for each in ranks
        if each.beat_at
    ]
    moved = make_grid(later, slow=(17,), known=grid.place)
    assert (moved.beats, moved.lags, moved.hue) == (again.beats, again.lags, again.hue)
    assert (grid.step, grid.lags[1], grid.names and grid.names[grid.hosts[16]]) == (1000, 1, "h2")  # type: ignore[index]  # they are there


async def keep_outputs(agent: FakeAgent, order: Any, data: bytes) -> None:
    """Send an output as a host does, with one more that was left out."""
    digest = hashlib.sha256(data).digest()
    entries = [
        Entry(b"out", FOLDER, 0o755),
        Entry(b"out/report.html", FILE, 0o644, len(data), digest),
    ]
    key = order.key
    query = {
        "job": key.job_id,
        "rank": key.rank,
        "epoch": key.epoch,
        "attempt": order.attempt,
        "incarnation": agent.incarnation,
    }
    pack = head_of_pack([(digest, len(data))]) + data
    _, manifest = encode_manifest(entries)
    report = OutputsReport(
        manifest=manifest, ended=True, left=[LeftOut("out/huge\u202e", "it has 3 TiB")]
    )
    for path, body in (("/packs", pack), ("", encode_report(report))):
        answer = await agent.served.http.put(
            f"/v1/agent/outputs{path}", content=body, params=query, headers=bearer(agent.key)
        )
        assert answer.status_code < 300, answer.text


async def test_an_output_is_a_download_and_never_a_page(
    served: Served, agent: FakeAgent, browser: Browser
) -> None:
    data = b"<script>alert(1)</script>" + os.urandom(2000)
    job = await served.submit(outputs=["out/"])
    order = await agent.take()
    await agent.sync(agent.running(order))
    await keep_outputs(agent, order, data)
    page = (await browser.send("GET", f"/jobs/{job['id']}?tab=files")).text
    assert "out/report.html" in page
    assert "it has 3 TiB" in page
    assert hashlib.sha256(data).hexdigest() in page
    where = f"/jobs/{job['id']}/download/output?attempt=1&rank=0&path="
    answer = await browser.send("GET", f"{where}out/report.html")
    assert answer.content == data
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="report.html"'
    assert answer.headers["content-security-policy"].startswith("sandbox")
    assert answer.headers["x-content-type-options"] == "nosniff"
    for other in ("out/other", "out", "../out/report.html"):
        assert (await browser.send("GET", where + other)).status_code == 404


async def test_the_ranks_of_a_gang_stay_when_it_has_ended(
    served: Served, browser: Browser, agent: FakeAgent
) -> None:
    job = await served.submit(tasks=2, retry={"max_retries": 0})
    orders = sorted([await agent.take()], key=lambda order: order.key.rank)
    while len(orders) < 2:
        orders += (await agent.sync(wait=1.0)).launch
    await agent.sync(*[agent.running(order) for order in orders])
    path = f"/jobs/{job['id']}/ranks"
    live = await browser.send("GET", path, proof=True)
    assert live.json()["hue"] == "AA"
    place = live.json()["place"]
    second = await browser.send("GET", f"{path}?place={place}", proof=True)
    assert second.json()["hosts"] is None
    tag = second.headers["holdfast-tag"]
    assert (
        await browser.send("GET", f"{path}?place={place}&tag={tag}", proof=True)
    ).status_code == 304
    for order in sorted(orders, key=lambda each: -each.key.rank):
        await agent.end(order, exit_code=3)
    ended = (await browser.send("GET", path, proof=True)).json()
    assert len(ended["hue"]) == 2
    page = (await browser.send("GET", f"/jobs/{job['id']}?tab=ranks")).text
    assert "fell first" in page
    assert "exit code 3" in page
    readings = (await browser.send("GET", f"/jobs/{job['id']}?tab=readings")).text
    assert readings.count("<td") > 6


async def test_of_a_thousand_hosts_those_that_need_a_person_come_first(
    served: Served, browser: Browser
) -> None:
    for n in range(3):
        await FakeAgent(served, f"box-{n}", labels={"zone": "a" if n else "b"}).register()
    await served.call("POST", "/v1/hosts/box-1/quarantine", json={"reason": "ECC"})
    page = (await browser.send("GET", "/hosts")).text
    places = [page.index(f'href="/hosts/{name}"') for name in ("box-1", "box-0", "box-2")]
    assert places == sorted(places)
    assert "Quarantined 1" in page
    found = (await browser.send("GET", "/hosts", params={"q": "label:zone=a state:active"})).text
    assert re.findall(r'href="/hosts/(box-\d)"', found) == ["box-2"]
    assert "filters nothing" in (await browser.send("GET", "/hosts", params={"q": "x:y"})).text
    made = msgspec.convert((await served.call("GET", "/v1/hosts/box-0", "read")).json(), HostView)
    many = [msgspec.structs.replace(made, name=f"box-{n:04d}") for n in range(1000)]
    assert len(filter_hosts(many, "box-00")) == 100


async def test_reasons_that_take_long_hold_no_page_up(
    served: Served, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await served.submit()
    monkeypatch.setattr(job_page, "WHY_SECONDS", 0.0)
    path = f"/jobs/{job['id']}"
    first = (await browser.send("GET", path, headers={"Sec-Fetch-Dest": "document"})).text
    assert "data-late" in first
    then = (await browser.send("GET", path, headers={"Sec-Fetch-Dest": "empty"})).text
    assert "data-late" not in then
    assert "no host" in then


def test_evidence_is_told_in_words_and_not_twice() -> None:
    found = SuspectRecord(
        job_id="j", attempt=1, rank=3, kind="slow", host="h1", at=T0, step=35,
        message="rank 3 is 1.5 × as slow; its host waits for a disk",
        evidence={
            "measure": "step", "ratio": 1.5, "since_step": 12, "at_step": 35, "own_seconds": 3.0,
            "others_seconds": 2.0, "step_seconds": 3.0, "strain": "its host waits for a disk",
        },
    )  # fmt: skip
    assert say_evidence(found) == (
        "3 s of its own in each step, 2 s in those of the other ranks, 3 s a step now, "
        "since step 12, seen at step 35"
    )
    odd = msgspec.structs.replace(found, evidence={"rank 3": "beef", "rank 0": "cafe", "x": None})
    assert say_evidence(odd) == "rank 3 beef, rank 0 cafe"
    other = msgspec.structs.replace(found, evidence={"strain": "its host swaps"})
    assert say_evidence(other) == "its host swaps"
