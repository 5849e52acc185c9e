"""The agents' long poll over a real connection: waits, wakes, fences."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.controller.loops.admit import AdmitLoop
from holdfast.controller.runtime.wakes import HostPolls
from holdfast.core.causes import Watchdog
from holdfast.core.facts import Trip
from holdfast.core.ids import TaskKey
from holdfast.errors import Unavailable
from holdfast.moves.values import HostSync, HostSynced
from holdfast.wire import agent as wire
from holdfast.wire.sessions.messages import SessionOrder
from tests.store.rig import OK
from tests.unit.controller.conftest import FakeAgent, Served, bearer, make_join
from tests.waits import within

# As long as a call may wait. An earlier answer has a reason.
LONG_SECONDS = wire.MAX_WAIT_SECONDS


async def let_wait(served: Served) -> None:
    """Have calls with nothing to say wait as long as they ask."""
    change = {"set": {"sync_interval_seconds": LONG_SECONDS}}
    assert (await served.call("PATCH", "/v1/config", json=change)).status_code == 200


async def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("this was not to be asked")


async def waits(poll: asyncio.Task[Any], served: Served) -> None:
    async with within(5):
        while not served.controller.wakes.waiting_polls:
            await asyncio.sleep(0.005)
    assert not poll.done()


async def hang_up(poll: asyncio.Task[Any], served: Served) -> None:
    """Have the client of a poll that waits go away, and wait until the server knows."""
    await waits(poll, served)
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    async with within(5):
        while served.controller.wakes.waiting_polls:
            await asyncio.sleep(0.005)


async def test_a_poll_with_nothing_to_say_waits_for_its_time(
    served: Served, agent: FakeAgent
) -> None:
    await let_wait(served)
    began = time.monotonic()
    async with within(5):
        answer = await agent.sync(wait=0.4)
    assert time.monotonic() - began >= 0.38
    assert (answer.launch, answer.lost) == ([], [])


async def test_the_wait_is_cut_to_the_sync_interval(served: Served, agent: FakeAgent) -> None:
    await served.call("PATCH", "/v1/config", json={"set": {"sync_interval_seconds": 0.3}})
    async with within(5):
        answer = await agent.sync(wait=LONG_SECONDS)
    assert answer.sync_interval_seconds == 0.3


async def test_a_newer_call_answers_the_older(served: Served, agent: FakeAgent) -> None:
    await let_wait(served)
    older = asyncio.create_task(agent.sync(wait=LONG_SECONDS))
    await waits(older, served)
    newer = asyncio.create_task(agent.sync(wait=LONG_SECONDS))
    async with within(5):
        await older
    await waits(newer, served)
    newer.cancel()


async def test_an_older_call_that_comes_late_does_not_wait(
    served: Served, agent: FakeAgent
) -> None:
    await let_wait(served)
    agent.seq = 10
    await agent.sync()
    agent.seq = 3
    async with within(5):
        await agent.sync(wait=LONG_SECONDS)


async def test_a_client_that_hangs_up_is_offered_nothing(served: Served, agent: FakeAgent) -> None:
    await let_wait(served)
    poll = asyncio.create_task(agent.post_sync(wait=LONG_SECONDS))
    await hang_up(poll, served)
    job = await served.submit()
    await served.until(job["id"], "reserved")
    tasks = await served.store.jobs.list_tasks(job["id"])
    assert [t.offered_at for t in tasks] == [None]


@pytest.mark.parametrize(("pool", "works"), [("p", True), ("p", False), ("", True)])
async def test_a_rented_host_that_hangs_up_with_work_has_its_provider_asked(
    served: Served, pool: str, works: bool
) -> None:
    """ASK-1. Of a host of no pool the lease decides."""
    agent = FakeAgent(served, "rented", pool=pool)
    await agent.register()
    await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    doubted: list[tuple[str, str]] = []
    served.controller.doubt = lambda *told: doubted.append(told)  # type: ignore[method-assign]  # heard here
    await let_wait(served)
    reports = [agent.running(order)] if works else []
    poll = asyncio.create_task(agent.post_sync(*reports, wait=LONG_SECONDS))
    await hang_up(poll, served)
    async with within(5):
        while pool and works and not doubted:
            await asyncio.sleep(0.005)
    assert doubted == ([(agent.host_id, "p")] if pool and works else [])


async def test_cancel_reaches_a_waiting_poll_at_once(served: Served, agent: FakeAgent) -> None:
    job = await served.submit(grace_seconds=77)
    order = await agent.take()
    await agent.sync(agent.running(order))
    await let_wait(served)
    poll = asyncio.create_task(agent.sync(agent.running(order), wait=LONG_SECONDS))
    await waits(poll, served)
    answer = await served.call("POST", f"/v1/jobs/{job['id']}/cancel", json={"reason": "enough"})
    assert answer.status_code == 202
    async with within(5):
        stop = (await poll).preempt[0]
    assert (stop.key, stop.grace_seconds, stop.cause) == (order.key, 77, "user_cancelled")
    assert (await agent.sync(agent.running(order))).preempt, "it repeats until the end is reported"
    await agent.end(order, signal=15, stopped=True)
    found = await served.until(job["id"], "cancelled")
    assert "enough" in found["reason"]


async def test_the_answer_to_an_end_brings_the_next_job(served: Served, agent: FakeAgent) -> None:
    """TAKE-1: the leader has no part in it."""
    first = [await served.submit() for _ in range(4)]
    orders = [await agent.take() for _ in range(1)]
    while len(orders) < len(first):
        starting = [wire.TaskReport(key=o.key, state="starting") for o in orders]
        orders += (await agent.sync(*starting, wait=2.0)).launch
    more = [await served.submit() for _ in range(2)]
    running = [wire.TaskReport(key=o.key, state="running") for o in orders[1:]]
    done = wire.TaskReport(key=orders[0].key, state="ended", facts=OK)
    answer = await agent.sync(done, *running)
    assert [order.key.job_id for order in answer.launch] == [more[0]["id"]]
    attempts = (await served.call("GET", f"/v1/jobs/{more[0]['id']}/attempts")).json()["items"]
    assert [a["road"] for a in attempts] == ["host"]
    left = (await served.call("GET", f"/v1/jobs/{more[1]['id']}")).json()
    assert left["state"] == "queued"


async def test_a_success_wakes_only_what_may_wait_for_it(served: Served, agent: FakeAgent) -> None:
    await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    wakes = served.controller.wakes
    before = {name: wakes.topic(name).version for name in ("drain", "workflows", "events")}
    await agent.end(order, exit_code=0)
    grown = {name for name, version in before.items() if wakes.topic(name).version > version}
    assert grown == {"events"}, "no drain waits for it, and no workflow"


async def test_a_success_that_a_job_waits_for_releases_it_at_once(
    served: Served, agent: FakeAgent
) -> None:
    parent = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    await served.submit(after=[parent["id"]])
    ended = served.controller.wakes.topic("ended")
    before = ended.version
    await agent.end(order, exit_code=0)
    assert ended.version > before, "its room was settled, but not what waits for its end"


async def test_a_submission_answers_a_poll_that_waits(
    served: Served, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WAKE-2: neither the leader nor another read of the store is needed."""
    monkeypatch.setattr(AdmitLoop, "run_once", never)
    poll = asyncio.create_task(agent.sync(wait=5.0))
    await waits(poll, served)
    monkeypatch.setattr(served.store.leases, "sync_hosts", never)
    job = await served.submit()
    answer = await poll
    assert [order.key.job_id for order in answer.launch] == [job["id"]]


async def test_the_order_of_a_session_answers_a_poll_that_waits(
    served: Served, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person waits for it, so no sync of the store is in between."""
    await let_wait(served)
    poll = asyncio.create_task(agent.sync(wait=LONG_SECONDS))
    await waits(poll, served)
    monkeypatch.setattr(served.store.leases, "sync_hosts", never)
    key = TaskKey("0" * 20, 0, 1)
    order = SessionOrder(id="a link", session="1" * 20, key=key, ticket="good for one dial")
    await served.store.sessions.ask_link(agent.host_id, order, served.controller.replica)
    served.controller.ask_host(agent.host_id, sessions=True)
    async with within(5):
        answer = await poll
    assert [told.id for told in answer.sessions] == ["a link"]


async def test_an_answer_that_waits_for_a_poll_is_kept_when_another_comes(
    served: Served, agent: FakeAgent
) -> None:
    polls = served.controller.wakes.host(agent.host_id)
    polls.begin_poll("one life", 0)
    launch = HostSynced(host_id=agent.host_id, status="ok", settled=True)
    with polls.wait():
        polls.answer("one life", launch)
        polls.answer("one life", HostSynced(host_id=agent.host_id, status="ok", sessions=True))
    assert polls.take_answer() is launch


async def test_an_order_leaves_before_the_answer_to_its_submission(
    served: Served, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = asyncio.create_task(agent.sync(wait=5.0))
    await waits(poll, served)
    requests, answered = served.controller.metrics.requests, []
    labels = requests.labels

    def note(*words: str) -> Any:  # counted when an answer was written
        answered.append(words[1])
        return labels(*words)

    monkeypatch.setattr(requests, "labels", note)
    await served.submit()
    await poll
    assert answered == ["/v1/agent/sync", "/v1/jobs"]


async def test_an_offer_that_no_poll_hears_is_made_again(
    served: Served, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = asyncio.create_task(agent.sync(wait=5.0))
    await waits(poll, served)
    monkeypatch.setattr(HostPolls, "answer", lambda *_: None)  # it hung up a moment ago
    job = await served.submit()
    poll.cancel()
    assert (await agent.take()).key.job_id == job["id"]


async def test_a_trip_is_requeued_and_runs_again(served: Served, agent: FakeAgent) -> None:
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    trip = Trip(watchdog=Watchdog.STALL, exit_code=76, reason="no beat for 120 s")
    await agent.end(order, signal=9, trip=trip)
    again = await agent.take()
    assert (again.key.job_id, again.attempt) == (job["id"], 2)
    assert again.key.epoch > order.key.epoch
    first = (await served.call("GET", f"/v1/jobs/{job['id']}/attempts")).json()["items"][0]
    assert (first["outcome"], first["cause"], first["exit_code"]) == ("requeued", "stalled", 76)
    page = (await served.call("GET", "/metrics")).text
    assert 'holdfast_trips_total{watchdog="stall"} 1.0' in page


async def test_a_stale_report_is_refused_and_changes_nothing(
    served: Served, agent: FakeAgent
) -> None:
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    stale = TaskKey(order.key.job_id, 0, order.key.epoch + 1)
    before = await served.job(job["id"])
    answer = await agent.sync(
        agent.running(order),
        wire.TaskReport(key=stale, state="ended", facts=wire.TaskFacts(exit_code=1)),
    )
    assert [(r.key, r.status, r.code) for r in answer.refused] == [(stale, 409, "stale_epoch")]
    assert await served.job(job["id"]) == before


async def test_a_host_cannot_touch_anothers_task(served: Served, agent: FakeAgent) -> None:
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    other = FakeAgent(served, "h2")
    await other.register()
    answer = await other.sync(other.running(order))
    assert answer.lost == [order.key]
    refused = await other.end(order, exit_code=0)
    assert [r.key for r in refused.refused] == [order.key]
    sent = await other.send_log(order.key, b"x")
    assert [tuple(k) for k in sent.json()["refused"]] == [(order.key.job_id, 0, order.key.epoch)]
    forensics = wire.encode(
        wire.Forensics(key=order.key, reason="r", seconds=1.0, sections={"a": "b"})
    )
    sent = await served.http.post(
        "/v1/agent/forensics", content=forensics, headers=bearer(other.key)
    )
    assert (sent.status_code, sent.json()["code"]) == (409, "stale_epoch")
    assert (await served.job(job["id"]))["state"] == "running"


async def test_a_stale_incarnation_is_told(served: Served, agent: FakeAgent) -> None:
    old = agent.incarnation
    agent.incarnation = "incarnation-of-h1-2"
    assert (await agent.register()).status_code == 200
    agent.incarnation = old
    answer = await agent.post_sync()
    assert (answer.status_code, answer.json()["code"]) == (409, "stale_incarnation")
    assert answer.headers["content-type"] == "application/problem+json"


async def test_an_unknown_key_is_unauthorized(served: Served, agent: FakeAgent) -> None:
    for secret in ("hfk_nobody", agent.key + "x"):
        agent.key = secret
        answer = await agent.post_sync()
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_join_token_serves_once_but_a_lost_answer_is_given_again(served: Served) -> None:
    secret = await make_join(served)
    first, again = FakeAgent(served, "one"), FakeAgent(served, "one")
    assert (await first.register(secret)).status_code == 200
    assert (await again.register(secret)).status_code == 200
    assert (first.host_id, first.key) == (again.host_id, again.key)
    other = FakeAgent(served, "two")
    answer = await other.register(secret)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert [h["name"] for h in (await served.call("GET", "/v1/hosts")).json()["items"]] == ["one"]


async def test_the_claim_that_spent_a_token_gets_its_key_again_after_a_restart(
    served: Served,
) -> None:
    secret = await make_join(served)
    answers = []
    for incarnation, claim in (
        ("first-incarnation", "c1"),
        ("second-incarnation", "c1"),
        ("third-incarnation", "c2"),
    ):
        request = wire.RegisterRequest(
            incarnation=incarnation, facts=wire.HostFacts(name="one"), claim=claim
        )
        headers = {"Authorization": f"Bearer {secret}"}
        answers.append(
            await served.http.post(
                "/v1/agent/register", content=wire.encode(request), headers=headers
            )
        )
    assert [a.status_code for a in answers] == [200, 200, 401]
    assert answers[0].json()["host_key"] == answers[1].json()["host_key"]


async def test_a_name_with_running_work_is_not_taken_over(served: Served, agent: FakeAgent) -> None:
    await served.submit()
    await agent.sync(agent.running(await agent.take()))
    thief = FakeAgent(served, "h1")
    secret = await make_join(served)
    answer = await thief.register(secret)
    assert (answer.status_code, answer.json()["code"]) == (409, "host_name_taken")
    thief.facts = wire.HostFacts(name="h9")
    assert (await thief.register(secret)).status_code == 200, (
        "the refusal must not have spent the token"
    )


async def test_changed_settings_reach_running_tasks(served: Served, agent: FakeAgent) -> None:
    await served.submit()
    order = await agent.take()
    agent.rev = (await agent.sync(agent.running(order))).settings_rev
    assert (await agent.sync(agent.running(order))).watch == []
    await served.call("PATCH", "/v1/config", json={"set": {"stall_timeout_seconds": "7s"}})
    answer = await agent.sync(agent.running(order))
    assert [(w.key, w.watch.stall_timeout_seconds) for w in answer.watch] == [(order.key, 7.0)]
    assert answer.settings_rev > agent.rev


async def test_binary_last_words_do_not_keep_a_job_from_ending(
    served: Served, agent: FakeAgent
) -> None:
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    await agent.end(order, exit_code=1, log_tail="a\x00b")
    await served.until(job["id"], "failed")


async def test_a_new_incarnation_frees_its_tasks_at_once(served: Served, agent: FakeAgent) -> None:
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    agent.incarnation = "incarnation-of-h1-2"
    await agent.register()
    again = await agent.take()
    assert (again.key.job_id, again.attempt) == (job["id"], 2)


async def test_many_polls_go_to_the_store_together(
    served: Served, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    whole, submit = served.store.leases.sync_hosts, served.controller.batcher.submit
    come, all_here = 0, asyncio.Event()

    async def count(sync: HostSync) -> object:
        nonlocal come
        come += 1
        if come == 8:
            all_here.set()
        return await submit(sync)

    async def slow(syncs: list[HostSync], **more: Any) -> object:
        sizes.append(len(syncs))
        await all_here.wait()
        return await whole(syncs, **more)

    monkeypatch.setattr(served.store.leases, "sync_hosts", slow)
    monkeypatch.setattr(served.controller.batcher, "submit", count)
    others = [FakeAgent(served, f"m{n}") for n in range(8)]
    for other in others:
        await other.register()
    await asyncio.gather(*(other.sync() for other in others))
    assert sum(sizes) == 8
    assert len(sizes) <= 2, "the first goes at once, the rest gather behind it"


async def test_one_bad_sync_does_not_take_its_neighbours_down(
    served: Served, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = served.store.leases.sync_hosts
    bad = FakeAgent(served, "bad")
    await bad.register()

    async def picky(syncs: list[HostSync], **more: Any) -> object:
        await asyncio.sleep(0.02)
        if any(s.host_id == bad.host_id for s in syncs):
            raise RuntimeError("cannot take this")
        return await whole(syncs, **more)

    monkeypatch.setattr(served.store.leases, "sync_hosts", picky)
    first = asyncio.create_task(agent.post_sync())
    others = [FakeAgent(served, f"m{n}") for n in range(3)]
    for other in others:
        await other.register()
    answers = await asyncio.gather(bad.post_sync(), *(o.post_sync() for o in others), first)
    assert [a.status_code for a in answers] == [500, 200, 200, 200, 200]
    assert "cannot take this" not in answers[0].text


async def test_a_store_that_is_away_is_503_with_retry_after(
    served: Served, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object, **__: object) -> None:
        raise Unavailable("the database is away")

    monkeypatch.setattr(served.store.leases, "sync_hosts", gone)
    monkeypatch.setattr(served.store, "ping", gone)
    answer = await agent.post_sync()
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) > 0
    ready = await served.call("GET", "/readyz", None)
    assert (ready.status_code, ready.json()["code"]) == (503, "unavailable")
    assert (await served.call("GET", "/healthz", None)).status_code == 200


async def test_a_stop_answers_waiting_polls(served: Served, agent: FakeAgent) -> None:
    await let_wait(served)
    poll = asyncio.create_task(agent.post_sync(wait=LONG_SECONDS))
    await waits(poll, served)
    async with within(5):
        await served.running.stop()
        assert (await poll).status_code == 200


async def test_a_leaving_host_is_sent_nothing(served: Served, agent: FakeAgent) -> None:
    await served.submit()
    async with within(5):
        while not (await served.store.hosts.get_host("h1")).busy_cpu_slots:
            await asyncio.sleep(0.01)
    answer = await agent.sync(leaving=True, wait=5)
    assert answer.launch == []


async def test_heartbeat_reaches_the_host(served: Served, agent: FakeAgent) -> None:
    await agent.sync()
    host = (await served.call("GET", "/v1/hosts/h1")).json()
    age = datetime.now(UTC) - datetime.fromisoformat(host["heartbeat_at"])
    assert age.total_seconds() < 10
    assert host["slots"] == {"cpu": {"total": 4, "busy": 0}, "gpu": {"total": 0, "busy": 0}}


async def test_a_poll_overtaken_while_it_is_in_the_store_does_not_wait_out_its_time(
    served: Served, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer call that comes before the older one waits finds no waiter to wake; the older must
    see it by itself."""
    await let_wait(served)
    await agent.sync(wait=0.3)  # the wakes of its registration are over when this poll is
    whole = served.store.leases.sync_hosts
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def held(syncs: list[HostSync], **more: Any) -> object:
        inside.set()
        await go_on.wait()
        return await whole(syncs, **more)

    monkeypatch.setattr(served.store.leases, "sync_hosts", held)
    older = asyncio.create_task(agent.post_sync(wait=LONG_SECONDS))
    await inside.wait()
    overtaken_by = agent.seq + 1
    newer = asyncio.create_task(agent.post_sync(wait=LONG_SECONDS))
    line = served.controller.wakes.host(agent.host_id)
    async with within(5):
        while not line.is_newest(agent.incarnation, overtaken_by):
            await asyncio.sleep(0.001)
    go_on.set()
    async with within(5):
        assert (await older).status_code == 200
    assert not newer.done(), "the newest call waits"
    newer.cancel()


async def test_a_rank_that_waits_is_excused_while_one_on_another_host_is_in_a_section(
    served: Served,
) -> None:
    """EXCUSE-1: by turns, so that a section that ends early excuses no rank for long."""
    left, right = FakeAgent(served, "left"), FakeAgent(served, "right")
    for host in (left, right):
        await host.register()
    await served.submit(tasks=2, placement="spread", time_limit_seconds=600)
    orders: dict[str, wire.LaunchOrder] = {}
    async with within(20):
        while len(orders) < 2:
            for host in (left, right):
                answer = await host.sync(wait=0.2)
                for claim in answer.claim:
                    port = 29500 if claim.key.rank == 0 else 0
                    await host.sync(wire.TaskReport(key=claim.key, state="claimed", port=port))
                for order in answer.launch:
                    orders[host.facts.name] = order
    saves, waits = (orders[name].key for name in ("left", "right"))

    def report(key: wire.TaskKey, **said: Any) -> wire.TaskReport:
        return wire.TaskReport(key=key, state="running", **said)

    await right.sync(report(waits))
    assert (await left.sync(report(saves, section_seconds=90.0))).excused == []
    assert (await right.sync(report(waits))).excused == [], "it did not ask"
    await served.call("PATCH", "/v1/config", json={"set": {"sync_interval_seconds": 30}})
    async with within(3):  # at once
        asked = await right.sync(report(waits, waits=True), wait=30.0)
    assert asked.excused == [wire.Excused(waits, 30.0)]
    await left.sync(report(saves, section_seconds=0.0))
    assert (await right.sync(report(waits, waits=True))).excused == []
