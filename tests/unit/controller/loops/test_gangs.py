"""Gangs over the wire: preemption from both sides, starts that take too long, held room, forced
drains, and what is logged."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.controller.loops.admit import AdmitLoop
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.moves.values import HostSync, HostSynced
from holdfast.wire import agent as wire
from tests.unit.controller.conftest import FakeAgent, Served
from tests.waits import within

SECONDS = 20
DISPATCHED = ("job.requeued", "job.retry_dispatched")


async def configure(served: Served, **settings: Any) -> None:
    answer = await served.call("PATCH", "/v1/config", json={"set": settings})
    assert answer.status_code == 200, answer.text


async def read_metric(served: Served, name: str) -> float:
    page = (await served.call("GET", "/metrics")).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.M)
    return float(found[1]) if found else 0.0


def claimed(key: TaskKey) -> wire.TaskReport:
    return wire.TaskReport(key=key, state="claimed", port=29_500 if key.rank == 0 else 0)


def ended(key: TaskKey, **facts: Any) -> wire.TaskReport:
    return wire.TaskReport(key=key, state="ended", facts=TaskFacts(**facts))


async def launch_gang(
    agent: FakeAgent, ranks: int, *others: wire.TaskReport
) -> list[wire.LaunchOrder]:
    """Take the launch orders of a gang whose ranks are all on this host (GANG-1)."""
    async with within(SECONDS):
        while not (answer := await agent.sync(*others, wait=1.0)).launch:
            assert not answer.claim
    assert len(answer.launch) == ranks
    assert {order.master_port for order in answer.launch} == {0}, "their host finds one port"
    return answer.launch


async def run_gang(
    served: Served, agent: FakeAgent, **spec: Any
) -> tuple[str, list[wire.TaskReport]]:
    job = await served.submit(**spec)
    reports = [agent.running(order) for order in await launch_gang(agent, spec["tasks"])]
    await agent.sync(*reports)
    await served.until(job["id"], "running")
    return job["id"], reports


async def until_told_to_stop(
    agent: FakeAgent, reports: Sequence[wire.TaskReport]
) -> list[wire.PreemptOrder]:
    async with within(SECONDS):
        while not (orders := (await agent.sync(*reports, wait=1.0)).preempt):
            pass
    return orders


def told(caplog: pytest.LogCaptureFixture, job_id: str) -> list[tuple[str, int]]:
    """(what, epoch) of the lines about one job, without what follows the first colon."""
    lines = [r for r in caplog.records if getattr(r, "job", None) == job_id and hasattr(r, "epoch")]
    return [(r.getMessage().split(":")[0], r.epoch) for r in lines]


async def test_a_gang_makes_room_for_a_more_important_one(
    served: Served, agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await configure(served, preempt_min_run_seconds=0)
    victim, reports = await run_gang(served, agent, tasks=2, cpus=2, priority=10, preemptible=True)
    winner = (await served.submit(tasks=2, cpus=2, priority=90))["id"]
    orders = await until_told_to_stop(agent, reports)
    sentence = f"preempted by job {winner} of priority 90 (this one has 10)"
    said = [(str(o.cause), o.reason.partition(";")[0], o.hard) for o in orders]
    assert said == [("preempted", sentence, False)] * 2
    assert {o.grace_seconds for o in orders} == {60.0}, "its notice (EVICT-1)"
    assert (await served.job(victim))["state"] == "draining"
    assert await read_metric(served, "holdfast_gangs_draining") == 1

    # One has gone. What it held is not for a passer-by, though that one waits for no longer and
    # fits.
    thief = (await served.submit(cpus=1, priority=50, time_limit_seconds="off"))["id"]
    answer = await agent.sync(reports[0], ended(reports[1].key, signal=15, stopped=True))
    assert answer.acked == [reports[1].key]
    async with within(SECONDS):
        while (
            "held back" not in (served.controller.refusals.find(winner) or "")
            or served.controller.refusals.find(thief) is None
        ):
            await asyncio.sleep(0.02)
    assert f"when {victim} has stopped there" in (served.controller.refusals.find(winner) or "")
    assert (await served.job(thief))["state"] == "queued"

    await agent.sync(ended(reports[0].key, signal=15, stopped=True))
    launched = await launch_gang(agent, 2)
    assert {order.key.job_id for order in launched} == {winner}
    back = await served.until(victim, "queued")
    charges = [back["retries_charged"], back["watchdog_charged"], back["infra_charged"]]
    assert charges == [0, 0, 0]
    (attempt,) = (await served.call("GET", f"/v1/jobs/{victim}/attempts")).json()["items"]
    assert (attempt["outcome"], attempt["cause"], attempt["charged_to"]) == (
        "requeued",
        "preempted",
        "nothing",
    )
    assert sentence in attempt["reason"]
    assert [m["state"] for m in attempt["members"]] == ["preempted", "preempted"]

    assert await read_metric(served, "holdfast_gangs_preempted_total") == 1
    assert await read_metric(served, 'holdfast_gangs_completed_total{outcome="requeued"}') == 1
    assert await read_metric(served, "holdfast_gang_drain_seconds_count") == 1
    assert 0 < await read_metric(served, "holdfast_gang_drain_seconds_sum") < SECONDS
    assert await read_metric(served, "holdfast_gangs_reserved") == 1
    assert await read_metric(served, "holdfast_gangs_draining") == 0
    assert told(caplog, victim) == [
        ("reserved", 1),
        ("drain started", 1),
        ("task preempted", 1),
        ("task preempted", 1),
        ("drain completed", 1),
    ]
    assert told(caplog, winner) == [("reserved", 1)]


async def test_nobody_is_preempted_who_has_hardly_begun_nor_where_preemption_is_off(
    served: Served, agent: FakeAgent
) -> None:
    """ADMIT-5, by the settings: first the default of minutes, then none and a cluster without
    preemption."""
    victim, reports = await run_gang(served, agent, tasks=2, cpus=2, priority=10, preemptible=True)
    await served.submit(tasks=2, cpus=2, priority=90)
    for settings in ({"preemption": True}, {"preemption": False, "preempt_min_run_seconds": 0}):
        await configure(served, **settings)
        await AdmitLoop(served.controller).run_once()
        assert (await served.job(victim))["state"] == "running"
    await configure(served, preemption=True)
    assert len(await until_told_to_stop(agent, reports)) == 2


async def test_peers_are_told_once(served: Served, agent: FakeAgent) -> None:
    """The ranks are told once an answer, however many orders it has."""
    other = FakeAgent(served, "h2", cpu_slots=2, address="10.0.0.2")
    await other.register()
    job = await served.submit(tasks=3, cpus=2, placement="pack")
    places: dict[str, list[wire.TaskReport]] = {"h1": [], "h2": []}
    async with within(SECONDS):
        while sum(map(len, places.values())) < 3:
            for each in (agent, other):
                name = each.facts.name
                claims = (await each.sync(*places[name], wait=0.05)).claim
                places[name] += [claimed(claim.key) for claim in claims]
        hers = await agent.sync(*places["h1"], wait=1.0)
        while len(hers.launch) < len(places["h1"]):
            await other.sync(*places["h2"])
            hers = await agent.sync(*places["h1"], wait=1.0)
    assert [gang.job_id for gang in hers.gangs] == [job["id"]]
    peers = hers.gangs[0].list_peers()
    names = {report.key.rank: name for name, reports in places.items() for report in reports}
    address = {"h1": agent.facts.address, "h2": "10.0.0.2"}
    assert peers == [
        wire.RankPeer(rank=r, host=names[r], address=address[names[r]]) for r in range(3)
    ]


async def test_one_line_tells_whose_failure_began_a_fall(
    served: Served, agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    job_id, reports = await run_gang(served, agent, tasks=3)
    answer = await agent.sync(reports[0], ended(reports[1].key, exit_code=7), reports[2])
    assert sorted(order.key.rank for order in answer.preempt) == [0, 2]
    assert [str(order.cause) for order in answer.preempt] == ["sibling_drained"] * 2
    again = await agent.sync(reports[0], reports[2])
    assert len(again.preempt) == 2, "an order repeats until it is acknowledged"
    await agent.sync(*(ended(r.key, signal=15, stopped=True) for r in (reports[0], reports[2])))
    await served.until(job_id, "failed")
    (line,) = [r for r in caplog.records if r.getMessage().startswith("drain started")]
    assert (line.job, line.epoch, line.rank, line.moved) == (job_id, 1, 1, 2)  # type: ignore[attr-defined]  # its `extra`
    late = await agent.sync(ended(reports[0].key, exit_code=0))
    assert late.acked == [reports[0].key], "a repeated end is acknowledged and changes nothing"
    old = TaskKey(job_id, 1, 99)
    assert [r.key for r in (await agent.sync(ended(old, exit_code=0))).refused] == [old]
    assert (await served.job(job_id))["state"] == "failed"


async def test_a_start_that_takes_too_long_is_given_up_together(
    served: Served, agent: FakeAgent
) -> None:
    """Both ranks were launched and one never came up: nothing is charged, and the next start has a
    time of its own."""
    await configure(served, start_timeout_seconds=1)
    job = await served.submit(tasks=2)
    slow, quick = [order.key for order in await launch_gang(agent, 2)]
    reports = [
        wire.TaskReport(key=slow, state="starting"),
        wire.TaskReport(key=quick, state="running", pid=1),
    ]
    orders = await until_told_to_stop(agent, reports)
    assert {str(order.cause) for order in orders} == {"start_timeout"}
    assert (
        "not every task ran within 1 s of the reservation (start_timeout_seconds): rank "
        f"{slow.rank} on h1 had not started" in orders[0].reason
    )
    await configure(served, start_timeout_seconds=900)
    await agent.sync(ended(slow, stopped=True), ended(quick, signal=15, stopped=True))
    second = await launch_gang(agent, 2)
    assert {order.key.epoch for order in second} != {slow.epoch}
    found = await served.job(job["id"])
    assert found["start_failures"] == 1
    assert found["retries_charged"] == 0
    reports = [agent.running(order) for order in second]
    await agent.sync(*reports)
    await served.until(job["id"], "running")
    await agent.sync(*(ended(r.key, exit_code=0) for r in reports))
    await served.until(job["id"], "succeeded")


async def test_room_is_held_for_one_that_waited_and_used_until_then(
    served: Served, agent: FakeAgent
) -> None:
    await configure(served, hold_back_seconds=0)
    _, first = await run_gang(served, agent, tasks=2, time_limit_seconds=600)
    gang = (await served.submit(tasks=4))["id"]
    endless = (await served.submit(time_limit_seconds="off"))["id"]
    brief = (await served.submit(time_limit_seconds=60))["id"]
    async with within(SECONDS):
        while not (orders := (await agent.sync(*first, wait=1.0)).launch):
            pass
    assert [order.key.job_id for order in orders] == [brief]
    assert "room is held back for it on h1" in (served.controller.refusals.find(gang) or "")
    assert (await served.job(endless))["state"] == "queued"
    await agent.sync(*(ended(r.key, exit_code=0) for r in (*first, agent.running(orders[0]))))
    assert {order.key.job_id for order in await launch_gang(agent, 4)} == {gang}


async def test_what_does_not_go_is_told_hard_and_keeps_its_place_until_it_has_gone(
    served: Served, agent: FakeAgent
) -> None:
    await configure(served, drain_force_seconds=1, grace_seconds=0)
    job_id, reports = await run_gang(served, agent, tasks=2, cpus=2)
    await served.call("POST", f"/v1/jobs/{job_id}/cancel", json={})
    assert [o.hard for o in await until_told_to_stop(agent, reports)] == [False, False]
    await agent.sync(ended(reports[0].key, signal=15, stopped=True), reports[1])
    async with within(SECONDS):
        while not any(order.hard for order in (await agent.sync(reports[1], wait=1.0)).preempt):
            pass
    assert await read_metric(served, "holdfast_gangs_force_drained_total") == 1, (
        "only what was left of it"
    )
    other = (await served.submit(cpus=4))["id"]
    assert (await served.job(job_id))["state"] == "draining"
    assert (await served.job(other))["state"] == "queued", "GANG-3: its place is not given away"
    await agent.sync(ended(reports[1].key, signal=9, stopped=True))
    await served.until(job_id, "cancelled")
    assert (await agent.take()).key.job_id == other


async def test_a_gangs_lease_is_short_where_neither_job_nor_queue_says_otherwise(
    served: Served, agent: FakeAgent
) -> None:
    async def lease_of(**spec: Any) -> float:
        job = await served.submit(**spec)
        await served.until(job["id"], "reserved")
        rows = await served.call("GET", f"/v1/jobs/{job['id']}/tasks")
        (ttl,) = {row["lease_ttl_seconds"] for row in rows.json()["items"]}
        await served.call("POST", f"/v1/jobs/{job['id']}/cancel", json={})
        return float(ttl)

    async def set_queue(**settings: Any) -> None:
        answer = await served.call("PUT", "/v1/queues/cpu", json={"set": settings})
        assert answer.status_code == 200, answer.text

    assert await lease_of(tasks=2) == 60
    assert await lease_of(tasks=1) == 300
    assert await lease_of(tasks=2, lease_ttl_seconds=200) == 200
    await configure(served, gang_lease_ttl_seconds=45)
    assert await lease_of(tasks=2) == 45
    assert await lease_of(tasks=1) == 300
    await set_queue(lease_ttl_seconds=120)
    assert (await lease_of(tasks=2), await lease_of(tasks=1)) == (120, 120)
    await set_queue(gang_lease_ttl_seconds=30)
    assert (await lease_of(tasks=2), await lease_of(tasks=1)) == (30, 120)


async def test_a_fall_that_is_told_whole_charges_the_rank_that_began_it(
    served: Served, agent: FakeAgent
) -> None:
    """FALL-1: the agent has stopped the others by itself, and tells all ends in one call, in the
    order of their ranks."""
    retry = {"max_retries": 2, "retry_delay": 0}
    job_id, reports = await run_gang(served, agent, tasks=4, retry=retry)
    ends = [ended(r.key, signal=15, stopped=True) for r in reports]
    ends[2] = ended(reports[2].key, exit_code=7)
    answer = await agent.sync(*ends)
    assert sorted(answer.acked) == sorted(r.key for r in reports)
    again = await launch_gang(agent, 4)
    assert {order.key.epoch for order in again} == {reports[0].key.epoch + 2}
    (attempt, _) = (await served.call("GET", f"/v1/jobs/{job_id}/attempts")).json()["items"]
    assert (attempt["trigger_rank"], attempt["cause"], attempt["exit_code"]) == (
        2,
        "nonzero_exit",
        7,
    )
    assert [m["state"] for m in attempt["members"]] == [
        *("preempted", "preempted", "failed", "preempted")
    ]
    job = await served.job(job_id)
    assert {rank: c["retries"] for rank, c in job["rank_charges"].items()} == {"2": 1}
    events = (await served.call("GET", f"/v1/events?job={job_id}")).json()["items"]
    assert [e["rank"] for e in events if e["kind"] == "job.draining"] == [2]


async def test_a_restart_is_admissions_where_another_job_is_before_it(
    served: Served, agent: FakeAgent
) -> None:
    retry = {"max_retries": 2, "retry_delay": 0}
    _, reports = await run_gang(served, agent, tasks=3, retry=retry)
    urgent = (await served.submit(tasks=4, priority=90))["id"]
    ends = [ended(r.key, signal=15, stopped=True) for r in reports]
    ends[0] = ended(reports[0].key, exit_code=7)
    launch = (await agent.sync(*ends)).launch
    async with within(SECONDS):
        while not launch:
            launch = (await agent.sync(wait=2.0)).launch
    assert {order.key.job_id for order in launch} == {urgent}


async def test_ends_are_acknowledged_before_what_becomes_of_them_is_decided(
    served: Served, agent: FakeAgent
) -> None:
    await configure(served, sync_interval_seconds=30)
    _, reports = await run_gang(served, agent, tasks=2, retry={"max_retries": 2})
    ends = [ended(reports[0].key, exit_code=7), ended(reports[1].key, signal=15, stopped=True)]
    async with within(5):  # less than the call may wait
        answer = await agent.sync(*ends, wait=30.0)
    assert sorted(answer.acked) == sorted(r.key for r in reports)


async def test_a_retry_without_a_delay_is_queued_with_its_decision_within_the_rate(
    served: Served, agent: FakeAgent
) -> None:
    """RATE-1, with the limit that holds by default: one transaction less, and the allowance of the
    loop that dispatches the others is spent."""
    job = await served.submit(retry={"max_retries": 2, "retry_delay": 0})
    for attempt in (1, 2, 3):
        async with within(SECONDS):
            while not (launch := (await agent.sync(wait=1.0)).launch):
                pass
        assert launch[0].attempt == attempt
        await asyncio.sleep(2 / 50)  # until one more may go: 50 a second
        await agent.sync(ended(launch[0].key, exit_code=1))
    await served.until(job["id"], "failed")
    events = (await served.call("GET", f"/v1/events?job={job['id']}")).json()["items"]
    at = {kind: [e["at"] for e in events if e["kind"] == kind] for kind in DISPATCHED}
    assert at["job.requeued"] == at["job.retry_dispatched"]
    assert len(at["job.requeued"]) == 2


async def test_a_call_that_waits_is_answered_by_the_reservation_itself(
    served: Served, agent: FakeAgent
) -> None:
    """WAKE-2: no sync of its own reads what the leader has placed."""
    batcher, asked = served.controller.batcher, []
    submit = batcher.submit

    async def count(sync: HostSync) -> HostSynced:
        asked.append(sync)
        return await submit(sync)

    batcher.submit = count  # type: ignore[method-assign]  # counted on its way
    waiting = asyncio.create_task(agent.sync(wait=10.0))
    line = served.controller.wakes.host(agent.host_id)
    async with within(SECONDS):
        while not line.waiting:
            await asyncio.sleep(0.01)
    await served.submit(tasks=2)
    answer = await waiting
    assert (len(answer.launch), len(asked)) == (2, 1)
    await agent.sync(*(agent.running(order) for order in answer.launch))
