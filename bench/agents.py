"""Simulated agents, many in one process, speaking `wire.agent` over real connections: `python -m
bench.agents`.

Driven by JSON lines on stdin, one answer line each:

    {"do": "register", "url", "token", "count", "slots", "prefix"}   → {"hosts": n}
    {"do": "work"}                                                   → {}         every agent claims and completes, for ever
    {"do": "await", "ended": n, "timeout"}                           → {"at", "ended", "syncs", "refused"}   when n ends are on record
    {"do": "sync", "url", "path", "interval", "seconds", "register"} → lateness and counts of agents
    that only sync
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from typing import Any, cast

import httptools
import msgspec
import uvloop

from bench.figures import percentile
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.wire.agent import (
    HostFacts,
    RegisterRequest,
    SyncRequest,
    TaskReport,
    decode_register_answer,
    decode_sync_answer,
    encode,
)

_DONE = TaskFacts(exit_code=0)
_TOGETHER = 32


class Wire(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._body += body

    def on_message_complete(self) -> None:
        """Called by the parser."""
        status, body, self._body = self._parser.get_status_code(), self._body, b""
        self._parser = httptools.HttpResponseParser(self)
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((status, body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self.closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the server closed the connection"))

    def send(self, data: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send one request; the future brings (status, body)."""
        if self.closed or self._transport is None:
            raise ConnectionResetError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return self._answer

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()


class Agent:
    """One simulated host."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name, self._host, self._port = name, host, port
        self._wire: Wire | None = None
        self.key = ""
        self.incarnation = f"{name}-{time.time_ns():x}"[-60:].rjust(8, "0")
        self.seq = 0
        self.settings_rev = 0
        self.ended: dict[TaskKey, TaskReport] = {}

    async def post(self, path: str, token: str, body: bytes) -> tuple[int, bytes]:
        """One request on this agent's own connection, opened when there is none."""
        if self._wire is None or self._wire.closed:
            loop = asyncio.get_running_loop()
            _, self._wire = await loop.create_connection(Wire, self._host, self._port)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nAuthorization: Bearer "
            f"{token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return await self._wire.send(head.encode() + body)

    async def register(self, admin_token: str, slots: int, queues: tuple[str, ...] = ()) -> None:
        """Get a join token, exchange it for the host's key. queues: those it serves; none: all."""
        body = json.dumps({"role": "join", "name": self.name}).encode()
        status, answer = await self.post("/v1/tokens", admin_token, body)
        if status != 201:
            raise RuntimeError(f"no join token: HTTP {status} {answer[:300]!r}")
        join = json.loads(answer)["secret"]
        facts = HostFacts(name=self.name, cpu_slots=slots, queues=queues, version="bench")
        request = RegisterRequest(incarnation=self.incarnation, facts=facts)
        status, answer = await self.post("/v1/agent/register", join, encode(request))
        if status >= 300:
            raise RuntimeError(f"not registered: HTTP {status} {answer[:300]!r}")
        self.key = decode_register_answer(answer).host_key or ""

    def close(self) -> None:
        """Close the connection."""
        if self._wire is not None:
            self._wire.close()


class Fleet:
    """All agents of this process."""

    def __init__(self) -> None:
        self.agents: list[Agent] = []
        self.loops: list[asyncio.Task[None]] = []
        self.on_record = 0
        self.syncs = 0
        self.refused = 0
        self.error: BaseException | None = None
        self._changed = asyncio.Event()

    async def register(self, url: str, token: str, count: int, slots: int, prefix: str) -> None:
        """Register `count` hosts, some at a time."""
        host, port = url.removeprefix("http://").split(":")
        fresh = [Agent(f"{prefix}-{number}", host, int(port)) for number in range(count)]
        room = asyncio.Semaphore(_TOGETHER)

        async def one(agent: Agent) -> None:
            async with room:
                await agent.register(token, slots)

        await asyncio.gather(*(one(agent) for agent in fresh))
        self.agents += fresh

    def start_work(self) -> None:
        """Every agent claims and completes from now on."""
        for agent in self.agents:
            loop = asyncio.create_task(self._work(agent))
            loop.add_done_callback(self._note_end)
            self.loops.append(loop)

    def _note_end(self, loop: asyncio.Task[None]) -> None:
        if not loop.cancelled() and loop.exception() is not None:
            self.error = loop.exception()
            self._changed.set()

    async def _work(self, agent: Agent) -> None:
        """Report what was launched as ended, at once; the answer brings the next."""
        while True:
            agent.seq += 1
            request = SyncRequest(
                incarnation=agent.incarnation,
                seq=agent.seq,
                tasks=list(agent.ended.values()),
                wait_seconds=20.0,
                settings_rev=agent.settings_rev,
            )
            status, body = await agent.post("/v1/agent/sync", agent.key, encode(request))
            if status != 200:
                raise RuntimeError(f"sync of {agent.name}: HTTP {status} {body[:300]!r}")
            answer = decode_sync_answer(body)
            self.syncs += 1
            for key in answer.acked:
                if agent.ended.pop(key, None) is not None:
                    self.on_record += 1
            for refused in answer.refused:
                agent.ended.pop(refused.key, None)
                self.refused += 1
            agent.settings_rev = answer.settings_rev
            for order in answer.launch:
                for task in (order, *order.also):
                    agent.ended[task.key] = TaskReport(key=task.key, state="ended", facts=_DONE)
            self._changed.set()

    async def await_ended(self, ended: int, timeout_seconds: float) -> float:
        """Return the monotonic time at which `ended` ends were on record."""
        async with asyncio.timeout(timeout_seconds):
            while self.on_record < ended:
                if self.error is not None:
                    raise self.error
                self._changed.clear()
                await self._changed.wait()
        return time.monotonic()

    def close(self) -> None:
        """End the loops and connections."""
        for loop in self.loops:
            loop.cancel()
        for agent in self.agents:
            agent.close()


class Punctuality:
    """How the answers of agents that only sync came."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self.early = 0
        self.missed = 0
        self.errors: dict[str, int] = {}

    def note_error(self, words: str) -> None:
        """Count an error by its message."""
        self.errors[words[:200]] = self.errors.get(words[:200], 0) + 1


async def _sync_for_ever(
    agent: Agent,
    path: str,
    interval: float,
    phase: float,
    begin: float,
    end: float,
    found: Punctuality,
) -> None:
    """Sync with a wait of `interval`; count answers from `begin` (monotonic) on."""
    await asyncio.sleep(phase)
    while (sent := time.monotonic()) < end:
        agent.seq += 1
        body = b'{"incarnation":"%b","seq":%d,"wait_seconds":%a}' % (
            agent.incarnation.encode(),
            agent.seq,
            interval,
        )
        try:
            status, answer = await asyncio.wait_for(
                agent.post(path, agent.key, body), 2 * interval + 10
            )
        except (OSError, TimeoutError) as error:
            if sent >= begin:
                found.missed += 1
                found.note_error(repr(error))
            agent.close()
            await asyncio.sleep(interval)
            continue
        late = time.monotonic() - sent - interval
        if status != 200:
            found.note_error(f"HTTP {status} {answer[:150]!r}")
            await asyncio.sleep(interval)
        elif sent >= begin:
            if late > interval:
                found.missed += 1  # the next one was due before this one was answered
            found.late.append(max(0.0, late))
            found.early += late < -0.1
        if late < -0.1:
            await asyncio.sleep(-late)  # answered early, for a reason of its own: keep the rate


async def measure_sync(
    fleet: Fleet, path: str, interval: float, warm: float, seconds: float
) -> dict[str, Any]:
    """All agents sync every `interval` seconds, evenly spread; the middle `seconds` count."""
    found = Punctuality()
    begin = time.monotonic() + warm
    count = len(fleet.agents)
    await asyncio.gather(
        *(
            _sync_for_ever(
                agent, path, interval, interval * number / count, begin, begin + seconds, found
            )
            for number, agent in enumerate(fleet.agents)
        )
    )
    late = found.late or [0.0]
    return {
        "answers": len(found.late),
        "median": percentile(late, 50),
        "p99": percentile(late, 99),
        "worst": max(late),
        "early": found.early,
        "missed": found.missed,
        "errors": found.errors,
    }


async def obey(order: dict[str, Any], fleet: Fleet) -> dict[str, Any]:
    """Carry out one order."""
    match order["do"]:
        case "register":
            await fleet.register(
                order["url"], order["token"], order["count"], order["slots"], order["prefix"]
            )
            return {"hosts": len(fleet.agents)}
        case "pretend":
            host, port = order["url"].removeprefix("http://").split(":")
            fleet.agents = [
                Agent(f"bare-{number}", host, int(port)) for number in range(order["count"])
            ]
            return {"hosts": len(fleet.agents)}
        case "work":
            fleet.start_work()
            return {}
        case "await":
            at = await fleet.await_ended(order["ended"], order["timeout"])
            return {
                "at": at,
                "ended": fleet.on_record,
                "syncs": fleet.syncs,
                "refused": fleet.refused,
            }
        case "sync":
            return await measure_sync(
                fleet, order["path"], order["interval"], order["warm"], order["seconds"]
            )
        case other:
            raise ValueError(f"no order {other!r}")


async def serve() -> None:
    """Read orders until stdin ends."""
    fleet = Fleet()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            answer = await obey(json.loads(line), fleet)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(msgspec.json.encode(answer).decode(), flush=True)
    fleet.close()


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(serve())
