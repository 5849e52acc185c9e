"""`why` for gangs, over the wire: places, claims, starts, and both sides of a preemption."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.core.facts import TaskFacts
from holdfast.core.preemption import find_winner, say_preempted
from holdfast.core.ranks import name_ranks, say_names, say_ranks
from holdfast.wire import agent as wire
from tests.controller.conftest import FakeAgent, Served

LINE = dict[str, str]


async def why(served: Served, job: dict[str, Any]) -> dict[str, LINE]:
    """Code → its first line; the summary under "summary"."""
    answer = (await served.call("GET", f"/v1/jobs/{job['id']}/why")).json()
    lines: dict[str, LINE] = {"summary": {"message": answer["summary"]}}
    for line in answer["lines"]:
        lines.setdefault(line["code"], line)
    return lines


async def until_why(served: Served, job: dict[str, Any], code: str, seconds: float = 20) -> dict[str, LINE]:
    async with asyncio.timeout(seconds):
        while code not in (found := await why(served, job)):
            await asyncio.sleep(0.02)
    return found


async def until_claims(host: FakeAgent, count: int) -> list[wire.TaskKey]:
    """Sync until the host was asked to claim so many places; it answers none of them."""
    async with asyncio.timeout(20):
        while len(found := (await host.sync(wait=1.0)).claim) < count:
            pass
    return [order.key for order in found]


def claim(key: wire.TaskKey) -> wire.TaskReport:
    return wire.TaskReport(key=key, state="claimed", port=29500 if key.rank == 0 else 0)


@pytest.fixture
async def hosts(served: Served) -> tuple[FakeAgent, FakeAgent]:
    made = FakeAgent(served, "left", labels={"zone": "a"}), FakeAgent(served, "right", labels={"zone": "b"})
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
    assert found["no_room"]["message"] == "it needs 2 CPU slots for each of 4 tasks at once, and 2 fit now"
    huge = await served.submit(tasks=5, cpus=2)
    found = await why(served, huge)
    assert "no more than 4 would fit if all active hosts were idle" in found["impossible_resources"]["message"]


async def test_labels_decide_which_hosts_count(served: Served, hosts: tuple[FakeAgent, FakeAgent]) -> None:
    nowhere = await served.submit(host_labels={"zone": "c", "gpu": "h100"})
    found = await until_why(served, nowhere, "no_host_with_labels")
    assert found["no_host_with_labels"]["message"] == "no host that serves queue cpu carries gpu=h100, zone=c"
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
    assert found["claim_outstanding"]["message"].startswith("host right has not claimed the place of ranks ")
    assert "left" not in found["claim_outstanding"]["message"]
    assert "reservation_seconds is 30 s" in found["start_timeout"]["message"]

    others = await until_claims(right, 2)
    assert "was told and has not answered yet" in (await why(served, gang))["claim_outstanding"]["message"]
    await right.sync(*[claim(key) for key in others])
    found = await why(served, gang)
    assert "claim_outstanding" not in found
    assert found["starting_together"]["message"] == "all 4 ranks have their places; 0 have started, 4 have not"
    assert found["starting"]["message"].endswith("which was told and has not reported it yet") or found["starting"][
        "message"
    ].endswith("which has not asked yet")
    assert "unless every task runs (start_timeout_seconds is 600 s)" in found["start_timeout"]["message"]

    async with asyncio.timeout(20):
        while not (orders := (await left.sync(*[claim(key) for key in keys], wait=1.0)).launch):
            pass
    await left.sync(*[left.running(order) for order in orders])
    found = await why(served, gang)
    assert "; 2 have started, 2 have not" in found["starting_together"]["message"].replace("places", "")
    assert "on host right" in found["starting"]["message"]


async def test_failed_starts_end_in_a_park_and_a_person_lets_it_go_on(
    served: Served, hosts: tuple[FakeAgent, FakeAgent]
) -> None:
    await served.call("PATCH", "/v1/config", json={"set": {"start_failure_limit": 1}})
    gang = await served.submit(tasks=2, start_timeout_seconds=1)
    await until_claims(hosts[0], 1)  # it was told, so this is no reservation that nobody took
    await hosts[1].sync()
    async with asyncio.timeout(30):
        while "parked" not in (found := await why(served, gang)):
            for host in hosts:
                answer = await host.sync(wait=0.2)
                await host.sync(
                    *[wire.TaskReport(key=o.key, state="ended", facts=TaskFacts(stopped=True)) for o in answer.preempt]
                )
    assert found["parked"]["message"].startswith("it is parked: its start failed")
    assert "start_timeout_seconds" in found["parked"]["message"]
    assert f"holdfast retry {gang['id']}" in found["parked"]["hint"]
    again = await served.call("POST", f"/v1/jobs/{gang['id']}/retry", json={})
    assert again.json()["state"] in ("queued", "reserved")


async def test_what_a_host_could_not_start_is_said_with_the_host(served: Served, agent: FakeAgent) -> None:
    words = "this job runs in a container, and neither podman nor docker is installed on this host"
    job = await served.submit(image="docker.io/library/busybox")
    order = await agent.take()
    await agent.end(order, start_error=words)
    await served.until(job["id"], "failed")
    found = await why(served, job)
    assert found["start_error"]["message"] == f"attempt 1 could not be started on host h1: {words}"
    assert "--host-label" in found["start_error"]["hint"]
    (attempt,) = (await served.call("GET", f"/v1/jobs/{job['id']}/attempts")).json()["items"]
    assert (attempt["rule"], attempt["host"], words in attempt["reason"]) == ("start-error", "h1", True)


# ---- preemption
async def test_both_sides_of_a_preemption_name_each_other(served: Served, agent: FakeAgent) -> None:
    await served.call("PUT", "/v1/queues/cpu", json={"set": {"preempt_min_run_seconds": 0}})
    victim = await served.submit(cpus=4, priority=10, preemptible=True, name="night")
    order = await agent.take()
    await agent.sync(agent.running(order))
    await served.until(victim["id"], "running")
    winner = await served.submit(cpus=4, priority=90)
    await served.until(victim["id"], "draining")

    found = await until_why(served, winner, "room_held_back")
    assert found["summary"]["message"] == (
        f"it takes the place of job {victim['id']} (night, priority 10), which is being stopped"
    )
    found = await why(served, victim)
    assert found["preempted"]["message"].endswith(say_preempted(winner["id"], 90, 10))
    assert winner["id"] in found["preempted"]["hint"]

    await agent.end(order, stopped=True, signal=15)
    await served.until(winner["id"], "reserved")
    await served.until(victim["id"], "queued")
    found = await why(served, victim)
    assert found["preempted"]["message"].startswith(f"attempt 1 gave its place to job {winner['id']} of priority 90")
    assert "last_attempt" not in found
    assert "taking_place" not in await why(served, winner)


def test_the_sentence_of_a_preemption_is_read_back() -> None:
    assert find_winner(f"requeued at no charge: {say_preempted('06ch2v8wq1m4kz7d9x3t', 90, 10)}") == (
        "06ch2v8wq1m4kz7d9x3t",
        90,
    )
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
