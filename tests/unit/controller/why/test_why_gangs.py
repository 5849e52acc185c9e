"""`why` for gangs, over the wire: places, claims, starts, and both sides of a preemption."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.explain import explain
from holdfast.core.facts import TaskFacts
from holdfast.core.placement.preemption import Winner, find_winner, say_preempted, say_reclaimed
from holdfast.core.placement.ranks import name_ranks, say_names, say_ranks
from holdfast.core.records import AttemptRecord, JobRecord, TaskRecord
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.states import AttemptState, TaskState
from holdfast.wire import agent as wire
from holdfast.wire.api import Why
from tests.unit.controller.conftest import FakeAgent, Served
from tests.waits import within

LINE = dict[str, str]


async def why(served: Served, job: dict[str, Any]) -> dict[str, LINE]:
    """Code → its first line; the summary under "summary"."""
    answer = (await served.call("GET", f"/v1/jobs/{job['id']}/why")).json()
    lines: dict[str, LINE] = {"summary": {"message": answer["summary"]}}
    for line in answer["lines"]:
        lines.setdefault(line["code"], line)
    return lines


async def until_why(
    served: Served, job: dict[str, Any], code: str, seconds: float = 20
) -> dict[str, LINE]:
    async with within(seconds):
        while code not in (found := await why(served, job)):
            await asyncio.sleep(0.02)
    return found


async def until_claims(host: FakeAgent, count: int) -> list[wire.TaskKey]:
    """Sync until the host was asked to claim so many places; it answers none of them."""
    async with within(20):
        while len(found := (await host.sync(wait=1.0)).claim) < count:
            pass
    return [order.key for order in found]


def claim(key: wire.TaskKey) -> wire.TaskReport:
    return wire.TaskReport(key=key, state="claimed", port=29500 if key.rank == 0 else 0)


@pytest.fixture
async def hosts(served: Served) -> tuple[FakeAgent, FakeAgent]:
    made = (
        FakeAgent(served, "left", labels={"zone": "a"}),
        FakeAgent(served, "right", labels={"zone": "b"}),
    )
    for host in made:
        assert (await host.register()).status_code == 200
    return made


# ---- places
async def test_a_gang_that_does_not_fit_is_told_how_many_ranks_do(
    served: Served, hosts: tuple[FakeAgent, FakeAgent]
) -> None:
    filler = await served.submit(cpus=3)
    await served.until(filler["id"], "reserved")
    gang = await served.submit(tasks=4, cpus=2)
    found = await until_why(served, gang, "no_room")
    assert (
        found["no_room"]["message"]
        == "it needs 2 CPU slots for each of 4 tasks at once, and there is room for 2 now"
    )
    huge = await served.submit(tasks=5, cpus=2)
    found = await why(served, huge)
    assert "only 4 would fit if all hosts were idle" in found["impossible_resources"]["message"]


async def test_labels_decide_which_hosts_count(
    served: Served, hosts: tuple[FakeAgent, FakeAgent]
) -> None:
    nowhere = await served.submit(host_labels={"zone": "c", "gpu": "h100"})
    found = await until_why(served, nowhere, "no_host_with_labels")
    assert (
        found["no_host_with_labels"]["message"]
        == "no host that serves queue cpu has the labels gpu=h100, zone=c"
    )
    filler = await served.submit(cpus=4, host_labels={"zone": "a"})
    await served.until(filler["id"], "reserved")
    waits = await served.submit(host_labels={"zone": "a"})
    found = await why(served, waits)
    assert "no_room" in found, "the other host has room, and not the label"
    assert found["summary"]["message"] == "no host has 1 CPU slot free now"


async def test_room_held_back_is_named_with_its_hosts_and_its_time(
    served: Served, hosts: tuple[FakeAgent, FakeAgent]
) -> None:
    await served.call("PATCH", "/v1/config", json={"set": {"hold_back_seconds": 0}})
    left, right = hosts
    for host, zone in ((left, "a"), (right, "b")):
        job = await served.submit(cpus=3, host_labels={"zone": zone}, time_limit_seconds=900)
        order = await host.take()
        await host.sync(host.running(order))
        await served.until(job["id"], "running")
    gang = await served.submit(tasks=2, cpus=4)
    other = await served.submit(cpus=1, time_limit_seconds="off")
    found = await until_why(served, gang, "room_held_back")
    assert "left" in found["room_held_back"]["message"]
    assert "right" in found["room_held_back"]["message"]
    assert "s at the latest" in found["room_held_back"]["message"]
    assert "refused" not in found, "the same is not said twice"
    found = await until_why(served, other, "refused")
    assert "--time-limit" in found["refused"]["hint"], "it could use that room, if it ended in time"


# ---- starts
async def test_claims_that_are_missing_are_named_host_by_host(
    served: Served, hosts: tuple[FakeAgent, FakeAgent]
) -> None:
    left, right = hosts
    gang = await served.submit(tasks=4, cpus=2, placement="spread", start_timeout_seconds=600)
    await served.until(gang["id"], "reserved")
    found = await until_why(served, gang, "claim_outstanding")
    assert "has not asked for work yet" in found["claim_outstanding"]["message"]
    keys = await until_claims(left, 2)
    assert [key.rank for key in keys] in ([0, 2], [0, 1], [1, 3], [2, 3])
    await left.sync(*[claim(key) for key in keys])
    found = await why(served, gang)
    assert found["claiming"]["message"].endswith("once each has its place: 2 have, 2 have not")
    assert found["claim_outstanding"]["message"].startswith(
        "host right has not claimed the place of ranks "
    )
    assert "left" not in found["claim_outstanding"]["message"]
    assert "reservation_seconds is 30 s" in found["start_timeout"]["message"]

    others = await until_claims(right, 2)
    assert (
        "got the order and has not answered yet"
        in (await why(served, gang))["claim_outstanding"]["message"]
    )
    await right.sync(*[claim(key) for key in others])
    found = await why(served, gang)
    assert "claim_outstanding" not in found
    assert (
        found["starting_together"]["message"]
        == "all 4 ranks have their places; 0 have started, 4 have not"
    )
    assert found["starting"]["message"].endswith(
        "which got the order and has not reported a start yet"
    ) or found["starting"]["message"].endswith("which has not asked yet")
    assert (
        "unless every task runs by then (start_timeout_seconds is 600 s)"
        in found["start_timeout"]["message"]
    )

    async with within(20):
        while not (orders := (await left.sync(*[claim(key) for key in keys], wait=1.0)).launch):
            pass
    await left.sync(*[left.running(order) for order in orders])
    found = await why(served, gang)
    assert "; 2 have started, 2 have not" in found["starting_together"]["message"].replace(
        "places", ""
    )
    assert "on host right" in found["starting"]["message"]


async def test_failed_starts_end_in_a_park_and_a_person_lets_it_go_on(
    served: Served, hosts: tuple[FakeAgent, FakeAgent]
) -> None:
    await served.call("PATCH", "/v1/config", json={"set": {"start_failure_limit": 1}})
    gang = await served.submit(tasks=2, start_timeout_seconds=1)
    async with within(20):  # it is told, so its host has heard of the reservation
        while not (await hosts[0].sync(wait=1.0)).launch:
            pass
    await hosts[1].sync()
    async with within(30):
        while "parked" not in (found := await why(served, gang)):
            for host in hosts:
                answer = await host.sync(wait=0.2)
                await host.sync(
                    *[
                        wire.TaskReport(key=o.key, state="ended", facts=TaskFacts(stopped=True))
                        for o in answer.preempt
                    ]
                )
    assert found["parked"]["message"].startswith(
        "it is parked until you retry it: its start failed"
    )
    assert "start_timeout_seconds" in found["parked"]["message"]
    assert "ranks 0-1 on" in found["parked"]["message"] or "rank 0 on" in found["parked"]["message"]
    assert f"holdfast retry {gang['id']}" in found["parked"]["hint"]
    assert "parked until" in (await served.job(gang["id"]))["retry_state"]["sentence"]
    again = await served.call("POST", f"/v1/jobs/{gang['id']}/retry", json={})
    assert again.json()["state"] in ("queued", "reserved")


async def test_what_a_host_could_not_start_is_said_with_the_host(
    served: Served, agent: FakeAgent
) -> None:
    words = "this job runs in a container, and neither podman nor docker is installed on this host"
    job = await served.submit(image="docker.io/library/busybox")
    order = await agent.take()
    await agent.end(order, start_error=words)
    await served.until(job["id"], "failed")
    found = await why(served, job)
    assert found["ended"]["message"].count(words) == 1
    # Once is enough: the line of the host does not say it again.
    assert found["start_error"]["message"] == "attempt 1 could not be started on host h1"
    assert "--host-label" in found["start_error"]["hint"]
    (attempt,) = (await served.call("GET", f"/v1/jobs/{job['id']}/attempts")).json()["items"]
    assert (attempt["rule"], attempt["host"], words in attempt["reason"]) == (
        "start-error",
        "h1",
        True,
    )


# ---- preemption
LOST = re.compile(
    r"it loses least: \d+ CPU slot-seconds? since its attempt began, because no checkpoint of it is "
    r"on record since then"
)
LEFT = re.compile("; it has up to (1 min|[0-9]+ s) more to save$")


async def test_a_stop_is_not_taken_back_when_the_job_it_is_for_is_cancelled(
    served: Served, agent: FakeAgent
) -> None:
    """And that is said, and the stopped job starts again as soon as it has ended."""
    await served.call("PUT", "/v1/queues/cpu", json={"set": {"preempt_min_run_seconds": 0}})
    victim = await served.submit(cpus=4, priority=10, preemptible=True)
    order = await agent.take()
    await agent.sync(agent.running(order))
    await served.until(victim["id"], "running")
    winner = await served.submit(cpus=4, priority=90)
    await served.until(victim["id"], "draining")
    await served.call("POST", f"/v1/jobs/{winner['id']}/cancel", json={})
    found = await why(served, victim)
    assert f"job {winner['id']} was cancelled" in found["place_not_needed"]["message"]
    await agent.end(order, stopped=True, signal=15)
    await served.until(victim["id"], "reserved")
    (attempt, _) = (await served.call("GET", f"/v1/jobs/{victim['id']}/attempts")).json()["items"]
    assert (attempt["cause"], attempt["charged_to"]) == ("preempted", "nothing")


async def test_both_sides_of_a_preemption_name_each_other(served: Served, agent: FakeAgent) -> None:
    await served.call("PUT", "/v1/queues/cpu", json={"set": {"preempt_min_run_seconds": 0}})
    victim = await served.submit(cpus=4, priority=10, preemptible=True, name="night")
    order = await agent.take()
    await agent.sync(agent.running(order))
    await served.until(victim["id"], "running")
    winner = await served.submit(cpus=4, priority=90)
    await served.until(victim["id"], "draining")

    found = await until_why(served, winner, "room_held_back")
    said = found["summary"]["message"]
    assert said.startswith(
        f"it takes the place of job {victim['id']} (night, priority 10), which is being stopped; it "
        "was chosen because it loses least: "
    )
    assert LOST.search(said)
    assert LEFT.search(said)
    found = await why(served, victim)
    assert say_preempted(winner["id"], 90, 10) in found["preempted"]["message"]
    assert LOST.search(found["preempted"]["message"])
    assert "is killed after its notice of 60 s" in found["grace"]["message"]
    assert winner["id"] in found["preempted"]["hint"]

    assert "place_not_needed" not in found
    await agent.end(order, stopped=True, signal=15)
    await served.until(winner["id"], "reserved")
    await served.until(victim["id"], "queued")
    found = await why(served, victim)
    assert found["preempted"]["message"].startswith(
        f"attempt 1 gave its place to job {winner['id']} of priority 90"
    )
    assert "last_attempt" not in found
    assert "taking_place" not in await why(served, winner)


async def test_who_is_too_young_to_make_room_and_for_how_long_is_said(
    served: Served, agent: FakeAgent
) -> None:
    await served.call("PUT", "/v1/queues/cpu", json={"set": {"preempt_min_run_seconds": 600}})
    young = await served.submit(cpus=4, priority=10, preemptible=True)
    order = await agent.take()
    await agent.sync(agent.running(order))
    await served.until(young["id"], "running")
    more = await served.submit(cpus=4, priority=90)
    less = await served.submit(cpus=4, priority=5)
    found = await until_why(served, more, "may_make_room")
    assert found["may_make_room"]["message"] == (
        f"job {young['id']} of priority 10 may be preempted for it in 10 min, after 10 min of "
        "running"
    )
    assert "may_make_room" not in await why(served, less)
    await served.call("PATCH", "/v1/config", json={"set": {"preemption": False}})
    await until_why(served, more, "no_room")
    assert "may_make_room" not in await why(served, more)


async def test_both_sides_of_a_loan_name_each_other(served: Served, agent: FakeAgent) -> None:
    """A job of project b takes a host of 4 slots of which a owns 2; a asks, and b gives back."""
    await served.call("PUT", "/v1/queues/cpu", json={"set": {"preempt_min_run_seconds": 600}})
    await served.call("PUT", "/v1/projects/a", json={"set": {"share_cpu_slots": 2}})
    await served.call("PUT", "/v1/projects/b", json={"set": {"share_cpu_slots": 0}})
    borrower = await served.submit(cpus=4, project="b", name="night", priority=90)
    order = await agent.take()
    await agent.sync(agent.running(order))
    await served.until(borrower["id"], "running")
    assert (
        "project b holds 4 CPU slots, 4 more than its share"
        in ((await why(served, borrower))["borrows"]["message"])
    )
    owner = await served.submit(cpus=2, project="a", priority=1)
    too_much = await served.submit(cpus=3, project="a")
    found = await until_why(served, owner, "may_make_room")
    assert found["may_make_room"]["message"].startswith(
        f"job {borrower['id']} of project b, which borrows, may be stopped for it in 10 min"
    )
    assert "0 CPU slots of its share of 2" in found["within_share"]["message"]
    assert "are stopped for it" in found["within_share"]["message"]
    assert "may_make_room" not in await why(served, too_much)
    assert "this job needs 3" in (await why(served, too_much))["beyond_share"]["message"]

    await served.call("PUT", "/v1/queues/cpu", json={"set": {"preempt_min_run_seconds": 0}})
    await served.until(borrower["id"], "draining")
    found = await why(served, owner)
    said = found["summary"]["message"]
    assert said.startswith(
        f"it takes the place of job {borrower['id']} (night, project b), which gives back what its "
        "project borrowed; it was chosen because it loses least: "
    )
    assert LOST.search(said)
    assert LEFT.search(said)
    found = await why(served, borrower)
    assert say_reclaimed(owner["id"], "a", "b") in found["preempted"]["message"]
    await agent.end(order, stopped=True, signal=15)
    await served.until(owner["id"], "reserved")
    await served.until(borrower["id"], "queued")
    found = await why(served, borrower)
    assert found["preempted"]["message"] == (
        f"attempt 1 gave its place to job {owner['id']} of project a, which asked for its share, at "
        "no charge"
    )
    (attempt,) = (await served.call("GET", f"/v1/jobs/{borrower['id']}/attempts")).json()["items"]
    assert (attempt["cause"], attempt["charged_to"]) == ("preempted", "nothing")


def test_the_sentence_of_a_preemption_is_read_back() -> None:
    job_id = "06ch2v8wq1m4kz7d9x3t"
    sentence = f"requeued at no charge: {say_preempted(job_id, 90, 10)}"
    assert find_winner(sentence) == Winner(job_id=job_id, priority=90)
    sentence = f"requeued at no charge: {say_reclaimed(job_id, 'vision', 'speech.v2')}"
    assert find_winner(sentence) == Winner(job_id=job_id, project="vision")
    assert find_winner("a person preempted by accident") is None
    assert find_winner(None) is None


# ---- words
def test_ranks_and_names_stay_short() -> None:
    assert say_ranks([]) == ""
    assert say_ranks([5, 0, 2, 1, 5]) == "0-2, 5"
    assert say_ranks(range(1000)) == "0-999"
    assert say_ranks(range(0, 1000, 2), most=2) == "0, 2 and 498 more"
    assert (name_ranks([3]), name_ranks([3, 4])) == ("rank 3", "ranks 3-4")
    assert say_names(["a", "b", "a", "c"], most=2) == "a, b and 1 more"


# ---- what is hard to bring about with real agents
NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def test_an_attempt_without_a_beat_loads_where_the_job_is_known_to_beat() -> None:
    said = {"state": "running", "started_at": NOW}
    assert explain_job(**said).summary.endswith("; running for 100 s (no beat yet)")
    assert explain_job(**said, best_step=7).summary.endswith("; loading for 100 s (no beat yet)")


def explain_job(
    tasks: tuple[TaskRecord, ...] = (), *, watch: WatchSettings | None = None, **fields: Any
) -> Why:
    plain = {
        "id": "06ch2v8wq1m4kz7d9x3t", "name": "train", "project": "default", "queue": "gpu", "priority": 50, "reason": "",
        "tasks": max(1, len(tasks)), "gpus": 1, "cpu_slots": 0, "memory_bytes": 0, "labels": {}, "spec": {"argv": ["x"]},
        "epoch": 3, "attempts": 2, "created_at": NOW,
    }  # fmt: skip
    last = AttemptRecord(
        job_id=str(plain["id"]),
        number=2,
        parent=1,
        epoch=3,
        state=AttemptState.RESERVED,
        reserved_at=NOW,
    )
    job = msgspec.convert({**plain, **fields}, JobRecord)
    return explain(
        Circumstances(
            job=job,
            queue=None,
            tasks=tasks,
            hosts=(),
            place=0,
            now=NOW + timedelta(seconds=100),
            last_attempt=last,
            start_limit=("recovery_timeout_seconds", 600.0),
            reservation_seconds=30.0,
            watch=watch,
        )
    )


def reserved(rank: int, **fields: Any) -> TaskRecord:
    return TaskRecord(
        job_id="j",
        rank=rank,
        epoch=3,
        attempt=2,
        state=TaskState.RESERVED,
        host_name=f"node-{rank // 8}",
        barrier=False,
        **fields,
    )


def test_a_gang_over_many_hosts_is_explained_in_a_few_lines() -> None:
    found = explain_job(tuple(reserved(rank) for rank in range(1000)), state="reserved")
    messages = [line.message for line in found.lines if line.code == "claim_outstanding"]
    assert len(messages) == 6
    assert (
        messages[1]
        == "host node-1 has not claimed the place of ranks 8-15: it has not asked for work yet"
    )
    assert messages[-1] == "120 more hosts have not claimed their places either"
    (limit,) = [line.message for line in found.lines if line.code == "start_timeout"]
    assert limit.startswith("its places are given back any moment now"), (
        "30 s to answer, and 100 are over"
    )

    claimed = tuple(
        reserved(rank, offered_at=NOW, claimed_at=NOW if rank < 7 else None) for rank in range(8)
    )
    (line,) = [
        line
        for line in explain_job(claimed, state="reserved").lines
        if line.code == "claim_outstanding"
    ]
    assert (
        line.message
        == "host node-0 has not claimed the place of rank 7: it got the order and has not answered yet"
    )


def test_a_start_that_is_slow_is_told_when_it_is_given_up() -> None:
    tasks = tuple(
        msgspec.structs.replace(reserved(r, offered_at=NOW, claimed_at=NOW), barrier=True)
        for r in range(2)
    )
    found = explain_job(tasks, state="reserved", spec={"argv": ["x"], "image": "team/train:7"})
    codes = {line.code: line for line in found.lines}
    assert (
        "ranks 0-1 have their places on host node-0, which pulls its image team/train:7"
        in codes["container_starting"].message
    )
    assert codes["start_timeout"].message == (
        "its places are given back in 8 min, unless every task runs by then (recovery_timeout_seconds is "
        "600 s)"
    )
    assert "--recovery-timeout" in codes["start_timeout"].hint


def test_the_making_of_an_environment_is_told_as_what_it_is() -> None:
    task = msgspec.structs.replace(reserved(0, offered_at=NOW, claimed_at=NOW), barrier=True)
    found = explain_job((task,), state="reserved", spec={"argv": ["x"], "setup": "pip install x"})
    codes = {line.code: line for line in found.lines}
    making = codes["making_environment"]
    assert (
        "on host node-0, which lays the code and makes the environment of --setup" in making.message
    )
    assert "no watchdog counts it" in making.hint
    assert "(recovery_timeout_seconds with setup_seconds is" in codes["start_timeout"].message


def test_a_failed_start_is_no_retry() -> None:
    found = explain_job(
        state="waiting",
        wait_cause="back_off",
        retry_at=NOW + timedelta(seconds=160),
        cause="start_timeout",
        start_failures=2,
        retries_charged=1,
        reason="not every task ran within 600 s of the reservation; failed start 2 of 8, tried "
        "again in 60 s",
    )
    line = next(line for line in found.lines if line.code == "failed_starts")
    assert line.message.startswith(
        "2 starts in a row failed; it is tried again at 2026-01-01 12:02:40 UTC (60 s from now): "
        "not every"
    )
    assert "after 8 in a row it is parked" in line.hint
    assert "back_off" not in {line.code for line in found.lines}


def test_a_gang_that_falls_names_the_first_and_the_silent() -> None:
    tasks = (
        msgspec.structs.replace(reserved(0), state=TaskState.FAILED),
        msgspec.structs.replace(reserved(8), state=TaskState.PREEMPTING, lease_until=NOW),
        msgspec.structs.replace(reserved(9), state=TaskState.PREEMPTING, lease_until=NOW),
    )
    found = explain_job(
        tasks,
        state="draining",
        drain_since=NOW,
        drain_cause="nonzero_exit",
        drain_reason="rank 0 on node-0: exit code 9",
        trigger_rank=0,
    )
    assert (
        found.summary == "its attempt 2 has been stopping for 100 s: rank 0 on node-0: exit code 9"
    )
    (line,) = [line for line in found.lines if line.code == "unconfirmed"]
    assert line.message.startswith(
        "host node-1 has not confirmed the end of ranks 8-9; its lease ends at 12:00:00 UTC"
    )


@pytest.mark.parametrize(("ago", "said"), [(5, True), (20, False)])
def test_a_stop_says_when_the_deaf_are_killed_while_that_is_to_come(ago: int, said: bool) -> None:
    task = msgspec.structs.replace(reserved(0), state=TaskState.PREEMPTING, lease_until=NOW)
    since, watch = NOW + timedelta(seconds=100 - ago), WatchSettings(grace_seconds=15.0)
    found = explain_job((task,), watch=watch, state="draining", drain_since=since)
    lines = [line.message for line in found.lines if line.code == "grace"]
    assert lines == ["a process that does not end at TERM is killed after its grace of 15 s"] * said


def test_ranks_that_lag_are_named() -> None:
    tasks = tuple(
        msgspec.structs.replace(reserved(r), state=TaskState.RUNNING, step=90 + 10 * (r != 1))
        for r in range(3)
    )
    found = explain_job(tasks, state="running", step=100, beat_at=NOW)
    assert "its last known beat was 100 s ago at step 100" in found.summary
    assert "its ranks are at steps 90 to 100, rank 1 is furthest behind" in found.summary


async def test_the_minimum_run_time_is_the_jobs_then_the_projects_then_the_clusters(
    served: Served, agent: FakeAgent
) -> None:
    """Whatever the job would lose: none is stopped within it, for a priority or for a share."""
    await served.call("PATCH", "/v1/config", json={"set": {"preempt_min_run_seconds": 0}})
    await served.call("PUT", "/v1/projects/p", json={"set": {"preempt_min_run_seconds": 1200}})
    own = {"preempt_min_run_seconds": 600}
    firm = await served.submit(cpus=1, priority=10, preemptible=True, **own)
    old = await served.submit(cpus=1, priority=10, preemptible=True, project="p")
    free = await served.submit(cpus=2, priority=10, preemptible=True)
    for job in (firm, old, free):
        order = await agent.take()
        await agent.sync(agent.running(order))
        await served.until(job["id"], "running")
    winner = await served.submit(cpus=3, priority=90)
    await until_why(served, winner, "may_make_room")
    answer = (await served.call("GET", f"/v1/jobs/{winner['id']}/why")).json()
    said = [line["message"] for line in answer["lines"] if line["code"] == "may_make_room"]
    assert [text.partition(" of priority")[0] for text in said] == [
        f"job {firm['id']}",
        f"job {old['id']}",
    ]
    assert [text.partition(", after ")[2] for text in said] == [
        "10 min of running",
        "20 min of running",
    ]
    assert (await served.job(free["id"]))["state"] == "running", "it would not be enough"
    small = await served.submit(cpus=2, priority=80)
    await served.until(free["id"], "draining")
    assert {(await served.job(job["id"]))["state"] for job in (firm, old)} == {"running"}
    assert free["id"] in (await until_why(served, small, "room_held_back"))["summary"]["message"]
