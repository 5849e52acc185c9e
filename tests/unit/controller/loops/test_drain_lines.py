"""The log tells of every drain in the same lines under one job id and epoch, for every cause, and
every host is told at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.controller.log_lines import JsonFormatter
from holdfast.controller.loops.sweeps import HostDrainsLoop, ReservationsLoop
from holdfast.core.causes import Watchdog
from holdfast.core.facts import TaskFacts
from holdfast.core.watchdogs.verdicts import make_trip
from holdfast.wire import agent as wire
from tests.unit.controller.conftest import FakeAgent, Served
from tests.waits import within

SECONDS = 20


class Pair:
    """A gang of two ranks on two hosts, and what asks for its end."""

    def __init__(self, served: Served, caplog: pytest.LogCaptureFixture) -> None:
        self.served = served
        self.caplog = caplog
        self.agents = [FakeAgent(served, f"h{n}", cpu_slots=1) for n in range(2)]
        self.live: dict[str, wire.TaskReport] = {}  # host → what it reports of its rank
        self.silent: set[str] = set()
        self.job = ""

    async def start(self, *, running: int = 2, **spec: Any) -> None:
        """Have it claimed and launched; `running` of its ranks say that they run."""
        for agent in self.agents:
            assert (await agent.register()).status_code == 200
        self.job = (await self.served.submit(tasks=2, cpus=1, preemptible=True, **spec))["id"]
        async with within(SECONDS):
            claims = [await self._claim(agent) for agent in self.agents]
            for agent, claim in zip(self.agents, claims, strict=True):
                self.live[agent.facts.name] = claim
                await agent.sync(claim)
            for agent in self.agents[:running]:
                (order,) = (await agent.sync(self.live[agent.facts.name], wait=2.0)).launch
                self.live[agent.facts.name] = agent.running(order)
                await agent.sync(self.live[agent.facts.name])
            for agent in self.agents[running:]:
                assert (await agent.sync(self.live[agent.facts.name], wait=2.0)).launch

    async def _claim(self, agent: FakeAgent) -> wire.TaskReport:
        while not (found := (await agent.sync(wait=2.0)).claim):
            pass
        return wire.TaskReport(
            key=found[0].key, state="claimed", port=29_500 if found[0].key.rank == 0 else 0
        )

    async def end(self, host: int, **facts: Any) -> None:
        """Its rank ends there."""
        agent = self.agents[host]
        key = self.live.pop(agent.facts.name).key
        await agent.sync(wire.TaskReport(key=key, state="ended", facts=TaskFacts(**facts)))

    async def call(self, path: str, **body: Any) -> None:
        answer = await self.served.call("POST", path, json=body)
        assert answer.status_code in (200, 202), answer.text

    def lines(self) -> list[logging.LogRecord]:
        """What the log says of its first attempt."""
        return [
            r
            for r in self.caplog.records
            if getattr(r, "job", None) == self.job and getattr(r, "epoch", None) == 1
        ]

    async def fall(self, ask: Ask) -> None:
        """Both hosts wait for an order when `ask` comes, and do what they are told until the
        attempt is over. Their calls wait for longer than this may take, so only a wake brings an
        order in time."""
        calls = [asyncio.create_task(self._obey(agent)) for agent in self.agents]
        try:
            async with within(SECONDS):
                for agent in self.agents:
                    line = self.served.controller.wakes.host(agent.host_id)
                    while self.live[agent.facts.name].state == "running" and not line.waiting:
                        await asyncio.sleep(0.01)
                await ask(self)
                while not [r for r in self.lines() if r.getMessage().startswith("drain completed")]:
                    await asyncio.sleep(0.01)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def _obey(self, agent: FakeAgent) -> None:
        name = agent.facts.name
        while name in self.live and name not in self.silent:
            answer = await agent.post_sync(self.live[name], wait=30.0)
            if answer.status_code != 200:
                return
            for order in (
                wire.decode_sync_answer(answer.content).preempt if name not in self.silent else ()
            ):
                self.live.pop(name, None)
                await agent.sync(
                    wire.TaskReport(
                        key=order.key, state="ended", facts=TaskFacts(signal=15, stopped=True)
                    )
                )


Ask = Callable[[Pair], Awaitable[None]]


async def fail(pair: Pair) -> None:
    await pair.end(0, exit_code=7)


async def trip(pair: Pair) -> None:
    await pair.end(0, signal=9, trip=make_trip(Watchdog.STALL, "no beat", {}))


async def cancel(pair: Pair) -> None:
    await pair.call(f"/v1/jobs/{pair.job}/cancel")


async def cancel_hard(pair: Pair) -> None:
    await pair.call(f"/v1/jobs/{pair.job}/cancel", hard=True)


async def pause_hard(pair: Pair) -> None:
    await pair.call("/v1/queues/cpu/pause", hard=True)


async def preempt(pair: Pair) -> None:
    await pair.served.call("PATCH", "/v1/config", json={"set": {"preempt_min_run_seconds": 0}})
    await pair.served.submit(tasks=2, cpus=1, priority=99)


async def drain_host_hard(pair: Pair) -> None:
    await pair.call("/v1/hosts/h0/drain", hard=True)


async def drain_host_later(pair: Pair) -> None:
    await pair.call("/v1/hosts/h0/drain", deadline_seconds=0.001)
    async with within(SECONDS):
        while not await HostDrainsLoop(pair.served.controller).run_once():
            if [r for r in pair.lines() if r.getMessage().startswith("drain started")]:
                return  # the server's own loop came first
            await asyncio.sleep(0.01)


async def scale_down(pair: Pair) -> None:
    await pair.call("/v1/hosts/h0/drain", scale_down=True)


async def terminate_host(pair: Pair) -> None:
    await pair.call("/v1/hosts/h0/terminate")
    pair.silent.add("h0")


async def new_incarnation(pair: Pair) -> None:
    pair.silent.add("h0")
    pair.agents[0].incarnation = "incarnation-of-h0-2"
    assert (await pair.agents[0].register()).status_code == 200


async def lapse(pair: Pair) -> None:
    """Both leases: the first is the failure, and the other is gone without a word."""
    pair.silent |= {"h0", "h1"}
    store = pair.served.store
    async with await store.session.connect() as conn:
        await conn.execute("update tasks set lease_until = lease_until - interval '1 day'")
    assert await store.leases.lapse_leases(await store.now() - timedelta(days=1)) == [pair.job]
    pair.served.controller.poke("drain")


async def late_start(pair: Pair) -> None:
    answer = await pair.served.call(
        "PATCH", "/v1/config", json={"set": {"start_timeout_seconds": 1}}
    )
    assert answer.status_code == 200, answer.text
    while not [r for r in pair.lines() if r.getMessage().startswith("drain started")]:
        await ReservationsLoop(pair.served.controller).run_once()
        await asyncio.sleep(0.05)


REASONS: list[tuple[Ask, str, int, bool]] = [
    # what asks, the cause, how many others have to stop, whether a failure is behind it
    (fail, "nonzero_exit", 1, True),
    (trip, "stalled", 1, True),
    (terminate_host, "agent_transient", 1, True),
    (new_incarnation, "agent_transient", 1, True),
    (lapse, "agent_transient", 1, True),
    (cancel, "user_cancelled", 2, False),
    (cancel_hard, "user_cancelled", 2, False),
    (pause_hard, "preempted", 2, False),
    (preempt, "preempted", 2, False),
    (drain_host_hard, "host_drained", 2, False),
    (drain_host_later, "host_drained", 2, False),
    (scale_down, "scaled_down", 2, False),
    (late_start, "start_timeout", 2, False),
]


@pytest.mark.parametrize(
    ("ask", "cause", "moved", "failed"), REASONS, ids=[ask.__name__ for ask, *_ in REASONS]
)
async def test_every_drain_is_told_in_the_same_lines(
    served: Served, caplog: pytest.LogCaptureFixture, ask: Ask, cause: str, moved: int, failed: bool
) -> None:
    caplog.set_level(logging.INFO)
    # The completion of a lapse waits one interval for ends that come late (LATE-1).
    seconds = 1 if ask is lapse else 60
    await served.call("PATCH", "/v1/config", json={"set": {"sync_interval_seconds": seconds}})
    pair = Pair(served, caplog)
    await pair.start(running=1 if ask is late_start else 2)
    await pair.fall(ask)
    lines = pair.lines()
    words = [line.getMessage().split(":")[0] for line in lines]
    told = [
        w for w in words if w in ("reserved", "drain started", "task preempted", "drain completed")
    ]
    assert told == ["reserved", "drain started", *["task preempted"] * moved, "drain completed"]
    (started,) = [line for line in lines if line.getMessage().startswith("drain started")]
    found = {name: getattr(started, name) for name in ("cause", "moved", "attempt")}
    assert found == {"cause": cause, "moved": moved, "attempt": 1}
    assert (started.rank is not None) is failed  # type: ignore[attr-defined]  # its `extra`
    shown = msgspec.json.decode(JsonFormatter().format(started))
    assert (shown["cause"], shown["moved"], shown["epoch"]) == (cause, moved, 1), (
        "what nobody can read is not told"
    )
    gone = {line.rank for line in lines if line.getMessage().startswith("task preempted")}  # type: ignore[attr-defined]  # its `extra`
    assert len(gone) == moved
    assert started.rank not in gone  # type: ignore[attr-defined]  # its `extra`


async def test_places_that_nobody_was_told_to_use_have_nothing_to_stop(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """One of two hosts took its place, the other never asked: no process runs anywhere, and the
    drain is over at once."""
    caplog.set_level(logging.INFO)
    pair = Pair(served, caplog)
    for agent in pair.agents:
        await agent.register()
    job = (await served.submit(tasks=2, cpus=1))["id"]
    async with within(SECONDS):
        await pair._claim(pair.agents[0])
        await served.store.admission.expire_reservations(
            0.0, now=await served.store.now() + timedelta(seconds=1)
        )
        served.controller.poke("drain")
        while not [r for r in caplog.records if r.getMessage().startswith("drain completed")]:
            await asyncio.sleep(0.01)
    (started,) = [r for r in caplog.records if r.getMessage().startswith("drain started")]
    assert (started.job, started.moved, started.cause) == (job, 0, "start_timeout")  # type: ignore[attr-defined]  # its `extra`
