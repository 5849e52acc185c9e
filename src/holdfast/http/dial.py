"""Dial a server for one WebSocket, as an asyncio protocol: an agent's end of a session's link, and
the line over which a server passes such a link on to another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import cast

from holdfast.errors import ConnectionLost, HoldfastError, Unavailable, ValidationError
from holdfast.http.answers import BadAnswer
from holdfast.http.asynchronous import AsyncHttp, AsyncStream
from holdfast.http.websocket import (
    BINARY,
    CLOSE,
    NO_CODE,
    PING,
    PONG,
    Handshake,
    MessageReader,
    UpgradeRefused,
    read_close,
    write_close,
    write_message,
)
from holdfast.wire.sessions.frames import (
    BEAT_SECONDS,
    DAMAGED,
    LEFT,
    LOST,
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    RunningSum,
)

log = logging.getLogger("holdfast.sessions")

_HANDSHAKE_SECONDS = 10.0
_SILENCE_SECONDS = 90.0  # a server pings every 20 s
_LEAVE_SECONDS = 2.0
_HIGH_WATER_BYTES = 2 << 20


class Dialled(asyncio.Protocol):
    """A WebSocket to a server.

    sums: whether each frame has a running sum (SESSION-2); a server that passes frames on leaves
    the sums of the two ends as they are. hear: called with each frame. over: called once, with the
    code of the close, or `LOST`. ready: called whenever there is room to send again.
    """

    def __init__(self, *, sums: bool = True) -> None:
        self.stream: AsyncStream | None = None
        self.hear: Callable[[bytes], None] = lambda data: None
        self.over: Callable[[int], None] = lambda code: None
        self.ready: Callable[[], None] = lambda: None
        self.full = False
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hand = Handshake(PROTOCOL)
        self._reader = MessageReader(MAX_MESSAGE_BYTES)
        self._sums = (RunningSum(), RunningSum()) if sums else None  # of what is said, and heard
        self._held = self._leaves = False
        self._code: int | None = None
        self._heard_at = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._leave: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport of the connection; the event loop calls this."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)

    async def shake_hands(self, authority: str, target: str, headers: Mapping[str, str]) -> None:
        """Open the WebSocket at `target`. Raises Unavailable, and HoldfastError for a refusal."""
        assert self._transport is not None
        self._transport.write(self._hand.write_request(authority, target, headers))
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                await self._opened
        except TimeoutError:
            self.abort()
            raise Unavailable(f"{authority} did not open the link in time") from None

    def data_received(self, data: bytes) -> None:
        """Read frames; the event loop calls this."""
        self._heard_at = asyncio.get_running_loop().time()
        if not self._opened.done():
            data = self._open(data)
        if not data or self._leaves:
            return
        try:
            self._read(data)
        except ValidationError as error:
            log.warning(f"a session's link is closed: {error}")
            self.close(DAMAGED)

    def _open(self, data: bytes) -> bytes:
        """Read the answer to the handshake; return the bytes behind it."""
        try:
            rest = self._hand.feed(data)
        except UpgradeRefused as refused:
            said = f"the server answered {refused.status} to a link"
            self._opened.set_exception(HoldfastError(said))
        except BadAnswer as error:
            self._opened.set_exception(Unavailable(f"no link to the server: {error}"))
        else:
            if rest is not None:
                self._opened.set_result(None)
                self._look = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._watch)
            return rest or b""
        self.abort()
        return b""

    def _read(self, data: bytes) -> None:
        for opcode, payload in self._reader.feed(data):
            if opcode == BINARY:
                self.hear(payload if self._sums is None else self._sums[1].open(payload))
            elif opcode == PING:
                self._write(write_message(payload, PONG))
            elif opcode == CLOSE:
                code = read_close(payload)
                self._code = LEFT if code == NO_CODE else code
                self.close(self._code)
                self._end()

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
            self._write(write_message(b"", PONG))
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
            self._opened.set_exception(Unavailable("the server hung up on a link"))
        self._opened.exception()  # so that asyncio does not call it unread
        self.over(LOST if self._code is None else self._code)

    def send(self, data: bytes) -> None:
        """Send a frame to the other end."""
        self._write(write_message(data if self._sums is None else self._sums[0].seal(data)))

    send_on = send  # the name that it has for a line that is joined with this one

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
        server hangs up, because a socket that is closed earlier sends a reset, which can
        overtake the code."""
        if self._leaves or self._transport is None:
            return
        self._write(write_close(code))
        self.hold(False)
        self._leaves = True
        self._leave = asyncio.get_running_loop().call_later(_LEAVE_SECONDS, self._end)

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Break the link off at once."""
        if self._transport is not None:
            self._transport.abort()


async def dial(
    http: AsyncHttp, path: str, headers: Mapping[str, str], link: Dialled | None = None
) -> Dialled:
    """Open a link to a server, a WebSocket at `path`, and return it. Raises Unavailable where the
    server cannot be reached, and HoldfastError where it refuses."""
    link = link or Dialled()
    try:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            link.stream, address = await http.connect(link)
    except (ConnectionLost, TimeoutError) as error:
        raise Unavailable(f"no link to the server: {error}") from error
    await link.shake_hands(address.authority, f"{address.prefix}{path}", headers)
    return link
