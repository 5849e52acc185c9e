"""Two WebSockets that are joined, over real sockets: what the server itself writes falls into no
frame, and what is slow is told from what is dead."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
import uvloop
from uvicorn.protocols.utils import ClientDisconnected

from holdfast.controller.http.sockets import JoinableProtocol, Socket, SocketClosed
from holdfast.controller.sessions.open import relay
from holdfast.errors import HoldfastError, Unauthorized
from holdfast.http.websocket import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    Handshake,
    MessageReader,
    write_message,
)
from holdfast.wire.sessions.frames import (
    DAMAGED,
    LEFT,
    LOST,
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    REFUSAL,
    REFUSED,
)
from tests.waits import within

PING_SECONDS = 0.05


class End:
    """One end of a link, which decides about each byte that it sends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.messages: list[bytes] = []
        self.pings = self.pongs = 0
        self.code: int | None = None
        self._cut = MessageReader(MAX_MESSAGE_BYTES)

    async def hear(self) -> bool:
        """Take in what comes next, and answer a ping; return False at the end of the line."""
        try:
            data = await self.reader.read(1 << 16)
        except ConnectionError:
            data = b""
        return self.take(data)

    def take(self, data: bytes) -> bool:
        """Take in bytes; return False at the end of the line."""
        for opcode, payload in self._cut.feed(data):
            if opcode == BINARY:
                self.messages.append(payload)
            elif opcode == PING:
                self.pings += 1
                self.answer(payload)
            elif opcode == PONG:
                self.pongs += 1
            elif opcode == CLOSE:
                self.code = int.from_bytes(payload[:2], "big")
                self.writer.write(write_message(payload, CLOSE))
                self.writer.close()
                return False
        return bool(data)

    def answer(self, payload: bytes) -> None:
        self.writer.write(write_message(payload, PONG))


class Mute(End):
    """An end that answers no ping, as one whose answer waits behind a frame."""

    def answer(self, payload: bytes) -> None:
        """Say nothing."""


class Lines:
    """A server that joins every two WebSockets that come."""

    def __init__(self) -> None:
        self.refused: asyncio.Future[HoldfastError] = asyncio.Future()
        self.codes: list[int] = []
        self.ends: list[End] = []
        self._first: tuple[Socket, asyncio.Event] | None = None
        self.port = 0
        self.sockets: list[Socket] = []
        self.may_join = asyncio.Event()
        self.may_join.set()
        self.ended = asyncio.Event()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        line = Socket(scope, receive, send)
        self.sockets.append(line)
        await line.accept(PROTOCOL)
        if self._first is None:
            self._first = line, asyncio.Event()
            await self._first[1].wait()
            return
        (user, over), self._first = self._first, None
        await self.may_join.wait()
        try:
            self.codes.append(await relay(user, line, self._stay))
        finally:
            over.set()
            self.ended.set()

    async def _stay(self) -> HoldfastError:
        return await asyncio.shield(self.refused)

    async def connect(self, kind: type[End] = End) -> End:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        hand = Handshake(PROTOCOL)
        writer.write(hand.write_request("x", "/", {}))
        while (rest := hand.feed(await reader.read(1 << 16))) is None:
            pass
        end = kind(reader, writer)
        self.ends.append(end)
        assert not rest or end.take(rest)
        return end


@pytest.fixture
async def lines() -> AsyncIterator[Lines]:
    async with serve_lines() as found:
        yield found


@contextlib.asynccontextmanager
async def serve_lines() -> AsyncIterator[Lines]:
    found = Lines()
    with socket.create_server(("127.0.0.1", 0)) as wire:
        found.port = wire.getsockname()[1]
        server = uvicorn.Server(
            uvicorn.Config(
                found.app, ws=JoinableProtocol, ws_per_message_deflate=False, lifespan="off", interface="asgi3",
                ws_ping_interval=PING_SECONDS, ws_ping_timeout=PING_SECONDS, log_config=None,
                timeout_graceful_shutdown=1,
            )
        )  # fmt: skip
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]  # the tests' own stay
        task = asyncio.create_task(server.serve(sockets=[wire]))
        yield found
        for end in found.ends:
            if not end.writer.is_closing():
                end.writer.transport.abort()
        server.should_exit = True
        async with within(10):
            await task


def cut(data: bytes, seed: int) -> list[bytes]:
    """Cut bytes at random places."""
    places = sorted(random.Random(seed).sample(range(len(data)), 24))
    return [data[a:b] for a, b in itertools.pairwise([0, *places, len(data)])]


@pytest.mark.parametrize("towards", ["user", "host"])
async def test_a_ping_comes_between_the_parts_of_a_message_and_changes_none(
    lines: Lines, towards: str
) -> None:
    """SPLICE-1: each part is sent once a ping of the server has come, so each falls within it."""
    ends = await lines.connect(), await lines.connect()
    sender, reader = ends if towards == "host" else ends[::-1]
    data = random.Random(7).randbytes(200_000)
    async with within(20):
        for number, piece in enumerate(cut(write_message(data), 3)):
            sender.writer.write(piece)
            while reader.pings <= number:
                await reader.hear()
        while not reader.messages:
            await reader.hear()
    assert reader.messages == [data]


async def test_what_the_ends_ask_within_a_message_is_answered_at_once(lines: Lines) -> None:
    """SPLICE-1: the pong does not wait for the end of the message that is on its way to the asker."""
    user, host = await lines.connect(), await lines.connect()
    data = bytes(100_000)
    message = write_message(data)
    host.writer.write(message[:50_000])
    async with within(10):
        for number in range(5):
            user.writer.write(write_message(b"?", PING))
            while user.pongs <= number:
                assert await user.hear()
        host.writer.write(message[50_000:])
        while not user.messages:
            await user.hear()
    assert user.messages == [data]


@pytest.mark.parametrize("towards", ["user", "host"])
async def test_a_slow_message_is_waited_for_and_both_ends_hear_the_server_meanwhile(
    lines: Lines, towards: str
) -> None:
    """SPLICE-2: its sender answers no ping before its end, and takes many times as long as a ping
    may."""
    sides = (Mute, End) if towards == "host" else (End, Mute)
    ends = await lines.connect(sides[0]), await lines.connect(sides[1])
    sender, reader = ends if towards == "host" else ends[::-1]
    data = b"slow" * 10
    async with within(20):
        both = [asyncio.create_task(hear_on(end)) for end in ends]
        for byte in write_message(data):
            sender.writer.write(bytes((byte,)))
            await asyncio.wait(both, timeout=PING_SECONDS / 4)
        while not reader.messages:
            await asyncio.wait(both, timeout=PING_SECONDS)
    assert reader.messages == [data]
    assert not lines.codes
    assert sender.pings == 1  # no other is sent before the answer
    assert sender.pongs > 1
    assert reader.pings > 1
    for one in both:
        one.cancel()


async def hear_on(end: End) -> None:
    """Take in what comes, until the end of the line."""
    while await end.hear():
        pass


@pytest.mark.parametrize("towards", ["user", "host"])
async def test_a_line_that_stops_within_a_message_is_given_up(lines: Lines, towards: str) -> None:
    """SPLICE-2: neither what it began to send nor what its kernel still takes keeps it."""
    sides = (Mute, End) if towards == "host" else (End, Mute)
    ends = await lines.connect(sides[0]), await lines.connect(sides[1])
    sender, reader = ends if towards == "host" else ends[::-1]
    sender.writer.write(write_message(bytes(1000))[:500])
    async with within(10):
        await hear_on(reader)
    assert reader.code == LOST
    assert reader.messages == []


async def test_a_reader_that_takes_nothing_and_says_nothing_is_given_up(lines: Lines) -> None:
    """SPLICE-2: what waits for it does not keep its line, or its partner's."""
    await lines.connect(Mute)
    host = await lines.connect()
    block = write_message(bytes(1 << 18))

    async def pour() -> None:
        with contextlib.suppress(ConnectionError):
            while host.code is None:
                host.writer.write(block)
                await host.writer.drain()

    pouring = asyncio.create_task(pour())
    async with within(20):
        await hear_on(host)
        await pouring


async def test_a_refusal_stands_beside_messages_and_in_none(lines: Lines) -> None:
    """SPLICE-1: the server's own message comes after one that is whole, and no part of one that is
    under way comes before it."""
    user, host = await lines.connect(), await lines.connect()
    begun = write_message(bytes(50_000))
    host.writer.write(write_message(b"whole"))
    host.writer.write(bytes((BINARY,)) + begun[1:])  # without the bit of a message's last frame
    host.writer.write(write_message(b"?", PING))
    async with within(10):
        while not host.pongs:
            await host.hear()
        lines.refused.set_result(Unauthorized("your token is over"))
        await hear_on(user)
        await hear_on(host)
    assert user.messages[0] == b"whole"
    assert [message[0] for message in user.messages[1:]] == [REFUSAL]
    assert (user.code, host.code) == (REFUSED, REFUSED)


async def test_a_refusal_does_not_wait_for_a_message_that_does_not_end(lines: Lines) -> None:
    user, host = await lines.connect(), await lines.connect()
    host.writer.write(write_message(bytes(1000))[:500])
    async with within(10):
        lines.refused.set_result(Unauthorized("your token is over"))
        await hear_on(user)
    assert user.code == REFUSED


@pytest.mark.parametrize(
    ("code", "told"), [(LEFT, LEFT), (DAMAGED, DAMAGED), (1001, LOST)], ids=str
)
async def test_both_ends_learn_why_a_link_is_closed(lines: Lines, code: int, told: int) -> None:
    user, host = await lines.connect(), await lines.connect()
    async with within(10):
        user.writer.write(write_message(code.to_bytes(2, "big"), CLOSE))
        await hear_on(host)
    assert (host.code, lines.codes) == (told, [told])


@pytest.mark.parametrize("gone", [0, 1])
def test_a_link_whose_end_left_before_it_was_joined_ends_for_the_other(gone: int) -> None:
    """On the event loop of the server, where a connection that is over takes no setting more."""

    async def try_it() -> None:
        async with serve_lines() as lines, within(20):
            lines.may_join.clear()
            ends = await lines.connect(), await lines.connect()
            ends[gone].writer.transport.abort()
            while not any(one.line.transport.is_closing() for one in lines.sockets):
                await asyncio.sleep(0.001)
            lines.may_join.set()
            await hear_on(ends[1 - gone])
            await lines.ended.wait()
            assert lines.codes == [LOST]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(try_it())


async def test_a_client_that_left_before_its_websocket_was_accepted_is_closed() -> None:
    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        raise ClientDisconnected

    with pytest.raises(SocketClosed):
        await Socket({"type": "websocket"}, receive, send).accept(PROTOCOL)


@pytest.mark.parametrize("left_out", ["Sec-WebSocket-Key: ", "Sec-WebSocket-Version: 13"])
async def test_what_is_no_handshake_is_refused_in_our_own_words(
    lines: Lines, left_out: str
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", lines.port)
    request = Handshake(PROTOCOL).write_request("x", "/", {}).decode()
    kept = [line for line in request.split("\r\n") if not line.startswith(left_out)]
    async with within(10):
        writer.write("\r\n".join(kept).encode())
        answer = (await reader.read()).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 4")
    assert "application/problem+json" in answer
    assert "this is not a WebSocket's handshake" in answer
    assert "Failed to open" not in answer
