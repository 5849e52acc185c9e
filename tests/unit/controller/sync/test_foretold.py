"""FORETELL-1: what answers a poll before it is on record, from the controller's line to the agent's
call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.agent.uplink.http import HttpClient
from holdfast.errors import Unavailable
from holdfast.moves.values import HostSynced
from holdfast.wire import agent as wire
from tests.unit.controller.conftest import FakeAgent, Served
from tests.waits import within

Decide = Callable[[bool], None]


class Held:
    """A submission whose job is on record, and whose word of it is held back."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.decided: list[Decide | None] = []
        self.submit = served.store.leases.submit_to_host

    async def submit_to_host(self, *given: Any, **more: Any) -> Any:
        """As PostgreSQL's: foretell, and tell only where nothing was foretold."""
        kept: list[HostSynced] = []
        tell, foretell = more.pop("tell"), more.pop("foretell")

        async def keep(answer: HostSynced) -> None:
            kept.append(answer)

        found = await self.submit(*given, tell=keep, **more)
        self.decided.append(foretell(kept[0]))
        if self.decided[-1] is None:
            await tell(kept[0])
        return found


@pytest.fixture
def held(served: Served, monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held(served)
    monkeypatch.setattr(served.store.leases, "submit_to_host", held.submit_to_host)
    return held


class Caller:
    """The calls of a real agent, with the name and the key of a fake one."""

    def __init__(self, served: Served, agent: FakeAgent) -> None:
        self.client = HttpClient(served.url)
        self.calls = ControllerCalls(self.client)
        self.calls.token = agent.key
        self.agent = agent
        self.foretold: list[wire.SyncAnswer] = []

    def ask(self) -> asyncio.Task[wire.SyncAnswer | None]:
        """Begin a call that waits."""
        self.agent.seq += 1
        request = wire.SyncRequest(
            incarnation=self.agent.incarnation,
            seq=self.agent.seq,
            wait_seconds=20.0,
            settings_rev=self.agent.rev,
            hears_early=True,
        )
        return asyncio.create_task(self.calls.sync(request, self.foretold.append))


@pytest.fixture
async def caller(served: Served, agent: FakeAgent) -> AsyncIterator[Caller]:
    await served.call("PATCH", "/v1/config", json={"set": {"sync_interval_seconds": 30.0}})
    caller = Caller(served, agent)
    yield caller
    caller.client.close()


async def until(what: Callable[[], object]) -> None:
    async with within(10):
        while not what():
            await asyncio.sleep(0.002)


async def test_a_foretold_order_counts_once_it_is_on_record(
    served: Served, held: Held, caller: Caller
) -> None:
    poll = caller.ask()
    await until(lambda: served.controller.wakes.waiting_polls)
    job = await served.submit()
    await until(lambda: caller.foretold)
    assert not poll.done()
    (decide,) = held.decided
    assert decide is not None
    decide(True)
    answer = await poll
    assert answer is not None
    assert answer is caller.foretold[0], "it is read once"
    assert [order.key.job_id for order in answer.launch] == [job["id"]]


async def test_a_foretold_order_that_is_not_on_record_is_no_answer(
    served: Served, held: Held, caller: Caller
) -> None:
    poll = caller.ask()
    await until(lambda: served.controller.wakes.waiting_polls)
    await served.submit()
    await until(lambda: caller.foretold)
    (decide,) = held.decided
    assert decide is not None
    decide(False)
    assert await poll is None
    again = await caller.ask()
    assert again is not None
    assert len(again.launch) == 1, (
        "the next call reads what is on record, and the connection is kept"
    )


async def test_a_newer_poll_is_woken_when_a_foretold_order_comes_on_record(
    served: Served, held: Held, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have read before the commit, and the agent may be deaf to the older one."""
    older = caller.ask()
    await until(lambda: served.controller.wakes.waiting_polls)
    job = await served.submit()
    await until(lambda: caller.foretold)
    older.cancel()
    with monkeypatch.context() as early:
        hides = partial(_hide_offers, served.store.leases.sync_hosts)
        early.setattr(served.store.leases, "sync_hosts", hides)
        newer = caller.ask()
        await until(lambda: served.controller.wakes.waiting_polls)
    (decide,) = held.decided
    assert decide is not None
    decide(True)
    async with within(5):
        answer = await newer
    assert answer is not None
    assert [order.key.job_id for order in answer.launch] == [job["id"]]


async def _hide_offers(sync_hosts: Any, *given: Any, **more: Any) -> Any:
    found = await sync_hosts(*given, **more)
    return [msgspec.structs.replace(one, offers=()) for one in found]


async def test_nothing_is_foretold_to_an_agent_that_does_not_hear_it(
    served: Served, held: Held, agent: FakeAgent
) -> None:
    poll = asyncio.create_task(agent.sync(wait=5.0))
    await until(lambda: served.controller.wakes.waiting_polls)
    job = await served.submit()
    assert held.decided == [None]
    assert [order.key.job_id for order in (await poll).launch] == [job["id"]]


# ---- the agent's call alone

_HEAD = b"HTTP/1.1 200 OK\r\nholdfast-held: 1\r\nContent-Length: %d\r\n\r\n%s"
Talk = Callable[[asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def answering(talk: Talk) -> AsyncIterator[ControllerCalls]:
    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await talk(writer)
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield ControllerCalls(client)
    finally:
        client.close()
        server.close()


@pytest.mark.parametrize("word", [wire.RECORDED, wire.NOT_RECORDED, b"?"])
async def test_an_answer_whose_last_byte_came_with_it_was_not_foretold(word: bytes) -> None:
    body = wire.encode(wire.SyncAnswer(settings_rev=7)) + word
    foretold: list[wire.SyncAnswer] = []

    async def talk(writer: asyncio.StreamWriter) -> None:
        writer.write(_HEAD % (len(body), body))

    async with answering(talk) as calls:
        request = wire.SyncRequest(incarnation="i" * 8, hears_early=True)
        answer = await calls.sync(request, foretold.append)
    assert not foretold
    assert (answer is not None and answer.settings_rev == 7) is (word == wire.RECORDED)


async def test_a_foretold_answer_that_breaks_off_is_none() -> None:
    body = wire.encode(wire.SyncAnswer(settings_rev=7))
    foretold: list[wire.SyncAnswer] = []

    async def talk(writer: asyncio.StreamWriter) -> None:
        writer.write(_HEAD % (len(body) + 1, body))
        await until(lambda: foretold)

    async with answering(talk) as calls:
        request = wire.SyncRequest(incarnation="i" * 8, hears_early=True)
        with pytest.raises(Unavailable, match="broke off"):
            await calls.sync(request, foretold.append)
    assert [answer.settings_rev for answer in foretold] == [7]
