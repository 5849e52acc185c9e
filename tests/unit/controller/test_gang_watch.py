"""Slow and wrong ranks, from the reports of syncs to events, `why`, and what the settings ask for."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.controller.runtime.gangs.watch import GATHER_SECONDS
from holdfast.core.facts import TaskFacts
from holdfast.core.stragglers.agree import LEAST_AGREED, StepChecksum
from holdfast.core.stragglers.values import PaceBlock, write_pace
from holdfast.wire import agent as wire
from tests.unit.controller.conftest import FakeAgent, Served
from tests.waits import within

RANKS = 3


class SpreadGang:
    """A running gang with a rank on each of three hosts, and a fourth host beside it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.hosts = [FakeAgent(served, f"host{n}", cpu_slots=1) for n in range(RANKS + 1)]
        self.orders: dict[int, tuple[FakeAgent, wire.LaunchOrder]] = {}
        self.job = ""
        self.step = 0

    async def start(self, **spec: Any) -> None:
        for host in self.hosts:
            assert (await host.register()).status_code == 200
        asked = {"tasks": RANKS, "placement": "spread", "time_limit_seconds": 600, **spec}
        self.job = (await self.served.submit(**asked))["id"]
        await self.launch()

    async def launch(self) -> None:
        """Have the gang claimed, launched and running."""
        orders: dict[int, tuple[FakeAgent, wire.LaunchOrder]] = {}
        claims: dict[str, list[wire.TaskReport]] = {}
        async with within(20):
            while len(orders) < RANKS:
                for host in self.hosts:
                    answer = await host.sync(*claims.get(host.host_id, []), wait=0.05)
                    for claim in answer.claim:
                        port = 29_500 if claim.key.rank == 0 else 0
                        told = wire.TaskReport(key=claim.key, state="claimed", port=port)
                        claims.setdefault(host.host_id, []).append(told)
                    for order in answer.launch:
                        orders[order.key.rank] = (host, order)
        self.orders = orders
        for host, order in orders.values():
            await host.sync(host.running(order))

    async def tell_steps(self, owns: tuple[float, ...], blocks: int) -> None:
        """Every rank tells blocks of five steps; `owns` is the time that each works in a step."""
        for _ in range(blocks):
            self.step += 5
            for rank, (host, order) in self.orders.items():
                block = PaceBlock(
                    last_step=self.step, steps=5, seconds=max(owns), own_seconds=owns[rank]
                )
                told = host.running(order, pace=write_pace([block]))
                await host.sync(told, sent_at=50.0 + self.step)
            await self.served.controller.gangs.judge()

    async def tell_checksums(self, step: int, texts: str) -> None:
        for rank, (host, order) in self.orders.items():
            told = [StepChecksum(step, texts[rank])]
            await host.sync(host.running(order, checksums=told), sent_at=50.0 + step)
        await self.served.controller.gangs.judge()

    async def end_all(self) -> None:
        """Every rank is stopped, as it was told."""
        for host, order in self.orders.values():
            await host.end(order, stopped=True, signal=15)

    async def list_events(self, *kinds: str) -> list[dict[str, Any]]:
        events = (await self.served.call("GET", f"/v1/events?job={self.job}")).json()["items"]
        return [event for event in events if event["kind"] in kinds]

    async def why(self) -> list[str]:
        found = (await self.served.call("GET", f"/v1/jobs/{self.job}/why")).json()
        return [line["code"] for line in found["lines"]]

    async def read_states(self) -> dict[str, str]:
        hosts = (await self.served.call("GET", "/v1/hosts")).json()["items"]
        return {host["name"]: host["state"] for host in hosts}

    async def until_aside(self) -> str:
        """Wait for a host to be set aside, which the controller's own turn may do; its name."""
        async with within(20):
            while True:
                states = await self.read_states()
                aside = [name for name, state in states.items() if state == "quarantined"]
                if aside:
                    assert len(aside) == 1, "no more than a quarter of the pool is set aside"
                    return aside[0]
                await asyncio.sleep(0.01)

    def host_of(self, rank: int) -> str:
        return self.orders[rank][0].facts.name


@pytest.fixture
async def gang(served: Served) -> SpreadGang:
    return SpreadGang(served)


async def test_a_pace_that_cannot_be_read_is_left_out_and_the_rest_is_judged(
    gang: SpreadGang,
) -> None:
    await gang.start()
    host, order = gang.orders[0]
    many = write_pace([PaceBlock(last_step=5, steps=5, seconds=1.0)] * 9)
    for text in ("[", "null", "[[]]", "[[5,5,-1]]", many):
        answer = await host.sync(host.running(order, pace=text), sent_at=50.0)
        assert answer.unread == []
    await gang.tell_steps((1.0, 1.3, 1.0), blocks=8)
    assert await gang.list_events("task.straggler")


async def test_a_slow_rank_is_told_with_its_evidence_until_it_keeps_up_again(
    gang: SpreadGang,
) -> None:
    await gang.start()
    await gang.tell_steps((1.0, 1.3, 1.0), blocks=8)
    (event,) = await gang.list_events("task.straggler")
    assert (event["rank"], event["data"]["measure"], event["data"]["ratio"]) == (1, "own", 1.3)
    assert event["message"].startswith(
        f"rank 1 on {gang.host_of(1)} takes 1.30 times as long as the others by itself"
    )
    assert "straggler" in await gang.why()
    (kept,) = (await gang.served.call("GET", f"/v1/jobs/{gang.job}/suspects")).json()["items"]
    assert (kept["rank"], kept["kind"], kept["host"]) == (1, "slow", gang.host_of(1))
    page = (await gang.served.call("GET", "/metrics")).text
    assert 'holdfast_suspects_total{kind="slow"} 1.0' in page
    await gang.tell_steps((1.0, 1.0, 1.0), blocks=8)
    assert len(await gang.list_events("task.steady")) == 1
    assert "straggler" not in await gang.why()
    assert set((await gang.read_states()).values()) == {"active"}


async def test_a_gang_with_nothing_to_tell_apart_names_no_rank(gang: SpreadGang) -> None:
    await gang.start()
    await gang.tell_steps((1.0, 1.0, 1.0), blocks=20)
    await gang.tell_steps((1.4, 1.4, 1.4), blocks=8)
    assert await gang.list_events("task.straggler") == []
    (event,) = await gang.list_events("job.slowed")
    assert (event["rank"], event["data"]["ratio"]) == (None, 1.4)
    assert "gang_slowed" in await gang.why()


async def test_a_job_that_wants_no_word_of_slow_ranks_gets_none(gang: SpreadGang) -> None:
    await gang.start(on_straggler="ignore")
    await gang.tell_steps((1.0, 1.3, 1.0), blocks=8)
    assert await gang.list_events("task.straggler") == []


async def test_a_job_that_restarts_for_a_slow_rank_is_placed_on_other_hosts(
    gang: SpreadGang,
) -> None:
    await gang.start(on_straggler="restart", straggler_seconds=0)
    slow_host = gang.host_of(1)
    await gang.tell_steps((1.0, 1.3, 1.0), blocks=8)
    await gang.served.until(gang.job, "draining")
    await gang.end_all()
    await gang.launch()
    assert slow_host not in {gang.host_of(rank) for rank in range(RANKS)}
    job = await gang.served.job(gang.job)
    assert (job["attempts"], job["infra_charged"], job["retries_charged"]) == (2, 0, 0)
    (first, _) = (await gang.served.call("GET", f"/v1/jobs/{gang.job}/attempts")).json()["items"]
    assert first["cause"] == "straggler"


async def test_a_slow_rank_of_a_supervised_job_is_replaced_while_the_others_run_on(
    gang: SpreadGang,
) -> None:
    await gang.start(supervised=True, on_straggler="replace", straggler_seconds=0)
    await gang.tell_steps((1.0, 1.3, 1.0), blocks=8)
    host, order = gang.orders[1]
    async with within(20):
        while not (stops := (await host.sync(host.running(order), wait=0.5)).preempt):
            pass
    assert (stops[0].key.rank, stops[0].cause) == (1, "straggler")
    await host.end(order, stopped=True, signal=15)
    assert (await gang.served.job(gang.job))["state"] == "running"
    assert (await gang.list_events("task.replaced", "task.stopping"))[0]["rank"] == 1
    spare = gang.hosts[-1]
    async with within(30):
        while not (new := (await spare.sync(wait=0.5)).launch):
            others = [(h, o) for rank, (h, o) in gang.orders.items() if rank != 1]
            for other, running in others:
                await other.sync(other.running(running))
    assert new[0].key.rank == 1


async def test_a_host_that_is_blamed_for_a_slow_rank_gets_no_other_work(gang: SpreadGang) -> None:
    await gang.start(on_straggler="blame", straggler_seconds=0)
    await gang.tell_steps((1.0, 1.3, 1.0), blocks=8)
    assert await gang.until_aside() == gang.host_of(1)
    assert (await gang.served.job(gang.job))["state"] == "running"


@pytest.mark.parametrize("policy", ["blame", "restart"])
async def test_where_a_host_may_not_be_set_aside_the_sentence_says_why(
    gang: SpreadGang, policy: str
) -> None:
    await gang.served.call("PATCH", "/v1/config", json={"set": {"blame_hosts": False}})
    await gang.start(on_straggler="blame", straggler_seconds=0)
    host = gang.host_of(1)
    if policy == "blame":
        await gang.tell_steps((1.0, 1.3, 1.0), blocks=8)
        kind = "task.straggler"
    else:
        for step in range(LEAST_AGREED):
            await gang.tell_checksums(step, "aaa")
        await gang.tell_checksums(9, "aba")
        kind = "job.corrupt"
    async with within(20):
        while not (events := [e for e in await gang.list_events(kind) if e["data"].get("act")]):
            await asyncio.sleep(0.01)
    assert events[-1]["message"].endswith(f"; {host} stays in service: blame_hosts is off")
    assert set((await gang.read_states()).values()) == {"active"}


async def test_a_rank_that_computes_wrongly_has_its_host_set_aside_and_the_job_goes_on_elsewhere(
    gang: SpreadGang,
) -> None:
    await gang.start()
    bad_host = gang.host_of(2)
    for step in range(LEAST_AGREED):
        await gang.tell_checksums(step, "aaa")
    await gang.tell_checksums(9, "aab")
    (event,) = await gang.list_events("job.corrupt")
    assert (event["rank"], event["data"]["rank 2"], event["data"]["rank 0"]) == (2, "b", "a")
    assert event["message"] == (
        f"rank 2 on {bad_host} computed step 9 wrongly: checksum b, where the 2 other ranks have a"
    )
    assert await gang.until_aside() == bad_host
    await gang.served.until(gang.job, "draining")
    await gang.end_all()
    await gang.launch()
    assert bad_host not in {gang.host_of(rank) for rank in range(RANKS)}
    (first, _) = (await gang.served.call("GET", f"/v1/jobs/{gang.job}/attempts")).json()["items"]
    assert (first["cause"], first["outcome"]) == ("silent_corruption", "requeued")


async def test_the_checksums_of_the_last_seconds_are_compared_before_the_end_is_told(
    gang: SpreadGang,
) -> None:
    """They come with the reports of the ends, of each rank for itself, and all of them end well."""
    await gang.start()
    bad_host = gang.host_of(2)
    for step in range(LEAST_AGREED):
        await gang.tell_checksums(step, "aaa")
    for rank, (host, order) in gang.orders.items():
        facts = TaskFacts(exit_code=0)
        told = [StepChecksum(9, "aab"[rank])]
        await host.sync(
            wire.TaskReport(key=order.key, state="ended", facts=facts, checksums=told), sent_at=99.0
        )
    (event,) = await gang.list_events("job.corrupt")
    assert (event["rank"], event["data"]["rank 2"]) == (2, "b")
    assert await gang.until_aside() == bad_host
    await gang.launch()
    assert bad_host not in {gang.host_of(rank) for rank in range(RANKS)}
    (first, _) = (await gang.served.call("GET", f"/v1/jobs/{gang.job}/attempts")).json()["items"]
    assert (first["cause"], first["outcome"]) == ("silent_corruption", "requeued")


async def test_work_that_stands_still_is_told_once_for_the_gang_and_when_it_moves_again(
    gang: SpreadGang,
) -> None:
    await gang.start()

    async def tell(still: str) -> None:
        for host, order in gang.orders.values():
            await host.sync(host.running(order, still=still))
        watch = gang.served.controller.gangs
        before = await gang.list_events("task.still", "task.moving")
        await watch.judge()
        assert await gang.list_events("task.still", "task.moving") == before
        await watch.judge(gang.served.controller.clock() + GATHER_SECONDS)

    await tell("its step has stood for 600 s")
    await tell("its step has stood for 600 s")
    (event,) = await gang.list_events("task.still")
    assert event["message"] == "ranks 0-2: its step has stood for 600 s"
    assert "standstill" in await gang.why()
    assert (await gang.served.job(gang.job))["state"] == "running"
    await tell("")
    (event,) = await gang.list_events("task.moving")
    assert event["message"] == "its work moves again"
    assert "standstill" not in await gang.why()


async def test_ranks_that_never_agreed_are_told_and_nothing_is_done(gang: SpreadGang) -> None:
    await gang.start()
    await gang.tell_checksums(1, "aab")
    (event,) = await gang.list_events("job.corrupt")
    assert "were never alike before" in event["message"]
    assert (await gang.served.job(gang.job))["state"] == "running"
    assert set((await gang.read_states()).values()) == {"active"}


async def test_without_a_majority_the_next_attempt_says_which_rank_was_wrong(
    gang: SpreadGang,
) -> None:
    await gang.start()
    for step in range(LEAST_AGREED):
        await gang.tell_checksums(step, "aaa")
    was = [gang.host_of(rank) for rank in range(RANKS)]
    await gang.tell_checksums(9, "abc")
    await gang.served.until(gang.job, "draining")
    assert set((await gang.read_states()).values()) == {"active"}
    await gang.end_all()
    await gang.launch()
    await gang.tell_checksums(9, "bbb")
    assert await gang.until_aside() in (was[0], was[2])
    found = await gang.list_events("job.corrupt")
    assert sorted("did the step again" in event["message"] for event in found) == [False, True]


def test_a_report_that_tells_nothing_of_a_gang_is_no_longer_than_before() -> None:
    report = wire.TaskReport(key=wire.TaskKey("job", 0, 1), state="running")
    assert set(msgspec.to_builtins(report)) == {"key", "state"}
