"""Leaders that are gone in the middle of what they began: the next one goes on from the store."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.controller.loops.admit import SHALLOW_LIMIT
from holdfast.controller.server import RunningServer, bind_socket
from tests.unit.controller.conftest import FakeAgent, Served
from tests.waits import within

pytestmark = pytest.mark.parametrize("store", ["memory", "postgres"], indirect=True)


async def test_a_leader_that_is_gone_between_its_look_and_the_call_to_take(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WAKE-4: a round that is left to the hosts writes nothing, so the next leader calls them."""
    called = asyncio.Event()
    monkeypatch.setattr(served.controller.wakes, "call_to_take", called.set)
    agent = FakeAgent(served, "wide", cpu_slots=64)
    await agent.register()
    await served.call("POST", "/v1/queues/cpu/pause", json={"reason": "for the test"})
    jobs = [(await served.submit())["id"] for _ in range(SHALLOW_LIMIT + 4)]
    poll = asyncio.create_task(agent.sync(wait=5.0))
    async with within(5):
        while not served.controller.wakes.waiting_polls:
            await asyncio.sleep(0.005)
    await served.call("POST", "/v1/queues/cpu/resume")
    async with within(5):
        await called.wait()
    assert not poll.done()
    await served.running.stop()
    assert (await poll).launch == []
    successor = RunningServer(served.store, bind_socket("127.0.0.1", 0))
    await successor.start()
    agent.served = Served(successor, served.store)
    told: dict[str, None] = {}  # an order is given again until it is reported
    async with within(20):
        while len(told) < len(jobs):
            answer = await agent.sync(wait=5.0)
            told |= dict.fromkeys(order.key.job_id for order in answer.launch)
    assert [*told] == jobs
    await agent.served.http.aclose()
    await successor.stop()
