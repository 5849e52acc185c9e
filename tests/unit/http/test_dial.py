"""A host's end of a link: what is slow or held up is told from what is dead."""

from __future__ import annotations

import asyncio
import re

import pytest

from holdfast.http import dial
from holdfast.http.addresses import read_addresses
from holdfast.http.asynchronous import AsyncHttp
from holdfast.http.websocket import BINARY, CLOSE, PONG, accept_of
from holdfast.wire.sessions.frames import DAMAGED, LOST, STDIN, RunningSum, frame
from tests.waits import within


class Controller:
    """The controller's end of one link."""

    def __init__(self) -> None:
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        (key,) = re.findall(r"Sec-WebSocket-Key: (\S+)", head)
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept_of(key).encode() + b"\r\n\r\n"
        )

    async def read_small(self) -> tuple[int, bytes]:
        """Return the opcode and the payload of the next frame, which is a short one."""
        first, size = await self.reader.readexactly(2)
        mask = await self.reader.readexactly(4)
        data = await self.reader.readexactly(size & 0x7F)
        return first & 0x0F, bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


async def connect() -> tuple[dial.Dialled, Controller, asyncio.Server]:
    there = Controller()
    server = await asyncio.start_server(there.shake_hands, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    http = AsyncHttp(read_addresses(f"http://127.0.0.1:{port}"))
    return await dial.dial(http, "/v1/agent/sessions/l", {}), there, server


async def test_a_link_that_is_held_up_lives_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that reads nothing for minutes loses no connection; one whose controller is silent
    does."""
    monkeypatch.setattr(dial, "_SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(dial, "BEAT_SECONDS", 0.02)
    ended: list[int] = []
    async with within(20):
        link, there, server = await connect()
        link.over = ended.append
        link.hold(True)
        for _ in range(50):
            assert await there.read_small() == (PONG, b"")
        assert not ended
        link.hold(False)
        while (await there.reader.read(1 << 10)) != b"":
            pass
        there.writer.close()
        server.close()
    assert ended == [LOST]


async def test_a_changed_byte_is_heard_by_nobody_and_the_controller_learns_why() -> None:
    """SESSION-2, also where more of them are on their way."""
    heard: list[bytes] = []
    async with within(20):
        link, there, server = await connect()
        link.hear = heard.append
        sums = RunningSum()
        good, bad, after = (sums.seal(frame(STDIN, word)) for word in (b"good", b"gone", b"after"))
        for message in (good, bad.replace(b"o", b"0"), after):
            there.writer.write(bytes((0x80 | BINARY, len(message))) + message)
        opcode, said = await there.read_small()
        for _ in range(100):
            there.writer.write(bytes((0x80 | BINARY, len(after))) + after)
        there.writer.write(bytes((0x80 | CLOSE, 0)))
        there.writer.close()
        assert await there.reader.read() == b""
        server.close()
    assert (opcode, int.from_bytes(said, "big")) == (CLOSE, DAMAGED)
    assert heard == [frame(STDIN, b"good")]
