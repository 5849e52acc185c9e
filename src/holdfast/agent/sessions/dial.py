"""Dial the controller for one link of a session: a WebSocket, as an asyncio protocol."""

import asyncio
import logging
import os
from collections.abc import Callable

from holdfast.errors import ConnectionLost, HoldfastError, Unavailable, ValidationError
from holdfast.http.answers import write_head
from holdfast.http.asynchronous import AsyncHttp, AsyncStream
from holdfast.wire.sessions.frames import (
    BEAT_SECONDS,
    DAMAGED,
    LEFT,
    LOST,
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    RunningSum,
)
from holdfast.wire.sessions.websocket import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    MessageReader,
    accept_of,
    make_key,
    write_message,
)

log = logging.getLogger("holdfast.agent.sessions")

_MAX_HEAD_BYTES = 1 << 16
_HANDSHAKE_SECONDS = 10.0
_SILENCE_SECONDS = 90.0  # the controller pings every 20 s
_LEAVE_SECONDS = 2.0
_HIGH_WATER_BYTES = 2 << 20


class Dialled(asyncio.Protocol):
    """A WebSocket to the controller.

    hear: called with each frame. over: called once, with the code of the close, or `LOST`.
    ready: called whenever there is room to send again.
    """

    def __init__(self) -> None:
        self.stream: AsyncStream | None = None
        self.hear: Callable[[bytes], None] = lambda data: None
        self.over: Callable[[int], None] = lambda code: None
        self.ready: Callable[[], None] = lambda: None
        self.full = False
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = bytearray()
        self._accept = ""
        self._reader = MessageReader(MAX_MESSAGE_BYTES)
        self._said, self._heard = RunningSum(), RunningSum()
        self._held = self._leaves = False
        self._code: int | None = None
        self._heard_at = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._leave: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport of the connection; the event loop calls this."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)

    async def shake_hands(self, path: str, host: str, headers: dict[str, str]) -> None:
        """Open the WebSocket at `path`. Raises Unavailable, and HoldfastError for a refusal."""
        assert self._transport is not None
        key = make_key(os.urandom(16))
        self._accept = accept_of(key)
        words = {
            "Host": host,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Protocol": PROTOCOL,
            **headers,
        }
        self._transport.write(write_head("GET", path, words.items()))
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                await self._opened
        except TimeoutError:
            self.abort()
            raise Unavailable("the controller did not open the link in time") from None

    def data_received(self, data: bytes) -> None:
        """Read frames; the event loop calls this."""
        self._heard_at = asyncio.get_running_loop().time()
        if not self._opened.done():
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0 and len(self._head) <= _MAX_HEAD_BYTES:
                return
            self._read_head(bytes(self._head[: max(0, end)]))
            data = bytes(self._head[end + 4 :])
            self._head.clear()
            if not data or self._opened.exception() is not None:
                return
        if self._leaves:
            return
        try:
            self._read(data)
        except ValidationError as error:
            log.warning(f"a session's link is closed: {error}")
            self.close(DAMAGED)

    def _read(self, data: bytes) -> None:
        for opcode, payload in self._reader.feed(data):
            if opcode == BINARY:
                self.hear(self._heard.open(payload))
            elif opcode == PING:
                self._write(write_message(payload, os.urandom(4), PONG))
            elif opcode == CLOSE:
                self._code = int.from_bytes(payload[:2], "big") if len(payload) > 1 else LEFT
                self.close(self._code)
                self._end()

    def _read_head(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        named = {line.split(":", 1)[0].lower(): line.split(": ", 1)[-1] for line in lines[1:]}
        opened = words[1:2] == ["101"] and named.get("sec-websocket-accept") == self._accept
        if opened:
            self._opened.set_result(None)
            self._look = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._watch)
            return
        status = words[1] if len(words) > 1 else "?"
        self._opened.set_exception(HoldfastError(f"the controller answered {status} to a link"))
        self.abort()

    def _watch(self) -> None:
        """Send the other end a sign of life, and end the link if the other end has been silent for
        too long. Silence does not count while this end holds the other up."""
        loop = asyncio.get_running_loop()
        if self._held:
            self._heard_at = loop.time()
        if loop.time() - self._heard_at > _SILENCE_SECONDS:
            self.abort()
            return
        if not self.full:
            self._write(write_message(b"", os.urandom(4), PONG))
        self._look = loop.call_later(BEAT_SECONDS, self._watch)

    def pause_writing(self) -> None:
        """Note that the buffer is full; the event loop calls this."""
        self.full = True

    def resume_writing(self) -> None:
        """Note that there is room again; the event loop calls this."""
        self.full = False
        self.ready()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the link; the event loop calls this."""
        self._transport = None
        for timer in (self._look, self._leave):
            if timer is not None:
                timer.cancel()
        if not self._opened.done():
            self._opened.set_exception(Unavailable("the controller hung up on a link"))
        self._opened.exception()  # so that asyncio does not call it unread
        self.over(LOST if self._code is None else self._code)

    def send(self, data: bytes) -> None:
        """Send a frame to the other end."""
        self._write(write_message(self._said.seal(data), os.urandom(4)))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not (self._leaves or self._transport.is_closing()):
            self._transport.write(data)

    def hold(self, wanted: bool) -> None:
        """Stop or resume reading, so that the other end is held up while this end cannot go on."""
        self._held = wanted
        if self._transport is not None and not self._transport.is_closing():
            if wanted:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def close(self, code: int = LEFT) -> None:
        """Close the link once all frames are sent. Bytes that still come are dropped until the
        controller hangs up, because a socket that is closed earlier sends a reset, which can
        overtake the code."""
        if self._leaves or self._transport is None:
            return
        self._write(write_message(code.to_bytes(2, "big"), os.urandom(4), CLOSE))
        self.hold(False)
        self._leaves = True
        loop = asyncio.get_running_loop()
        self._leave = loop.call_later(_LEAVE_SECONDS, self._end)

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Break the link off at once."""
        if self._transport is not None:
            self._transport.abort()


async def dial(http: AsyncHttp, path: str, headers: dict[str, str]) -> Dialled:
    """Open a link to the controller, a WebSocket at `path`. Raises HoldfastError."""
    link = Dialled()
    try:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            link.stream, address = await http.connect(link)
    except (ConnectionLost, TimeoutError) as error:
        raise Unavailable(f"no link to the controller: {error}") from error
    await link.shake_hands(f"{address.prefix}{path}", address.authority, headers)
    return link
