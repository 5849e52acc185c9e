"""WebSockets as handlers use them, over ASGI, and how two lines are joined below it.

A relay that reads whole messages from ASGI and writes them again pays for each message in Python's
queues, and by a pause and a resume of its socket. Two joined lines need none of that: each message
of one goes on to the other as soon as it is whole.

SPLICE-1  A message goes on as one frame, so between two writes to a line stands the boundary of a
          frame: a ping, pong or close that anything writes there waits for nothing and falls into
          no other frame, and a message of the server itself stands before or after another.
SPLICE-2  Bytes that move count as life, in both directions: a line is given up only where, since it
          was asked, no byte came from its end and none was taken by it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Protocol, cast

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Response
from websockets.server import ServerProtocol

from holdfast.controller.http.problems import PROBLEM_TYPE, answer_problem, encode
from holdfast.errors import HoldfastError
from holdfast.http.sockets import count_acked
from holdfast.wire.api import Problem
from holdfast.wire.sessions.frames import REFUSED

_HEAD_SECONDS = 10.0
_MESSAGE_SECONDS, _CLOSE_SECONDS = 2.0, 40.0
_HIGH_WATER_BYTES = 1 << 20
_LINE = "holdfast.line"  # the key under which a WebSocket's scope holds its protocol


class SocketClosed(Exception):
    """The other end is gone. code: its code of the close; 1005 and 1006 for none."""

    def __init__(self, code: int) -> None:
        super().__init__(f"closed with {code}")
        self.code = code


class Socket:
    """One WebSocket, from the request to its end."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self._receive, self._send = receive, send
        self._accepted = self._over = False

    @property
    def line(self) -> JoinableProtocol:
        """Return the protocol of the connection."""
        found: JoinableProtocol = self.scope[_LINE]
        return found

    @property
    def offered(self) -> Iterable[str]:
        """Return the subprotocols that the client offers."""
        found: list[str] = self.scope.get("subprotocols", [])
        return found

    async def accept(self, subprotocol: str | None) -> None:
        """Open the WebSocket. Raises SocketClosed."""
        await self._put({"type": "websocket.accept", "subprotocol": subprotocol})
        self._accepted = True
        async with asyncio.timeout(_HEAD_SECONDS):
            await self._receive()  # the request itself

    async def refuse(self, error: HoldfastError) -> None:
        """Answer the request with a problem instead of a WebSocket."""
        if self._accepted:
            await self.close(REFUSED)
            return
        answer = answer_problem(error)
        start = {"status": answer.status_code, "headers": answer.raw_headers}
        body = {"body": bytes(answer.body), "more_body": False}
        with contextlib.suppress(Exception):  # the client may be gone
            await self._send({"type": "websocket.http.response.start", **start})
            await self._send({"type": "websocket.http.response.body", **body})

    async def read(self) -> bytes:
        """Return the next message. Raises SocketClosed."""
        if self._over:
            raise SocketClosed(1006)
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._over = True
                raise SocketClosed(int(message.get("code") or 1006))
            data = message.get("bytes")
            if data is None and message.get("text") is not None:
                return str(message["text"]).encode()
            if data is not None:
                return bytes(data) if not isinstance(data, bytes) else data

    async def hear_out(self) -> int:
        """Wait for the end, without a look at what comes; return the code of the close."""
        try:
            while True:
                await self.read()
        except SocketClosed as closed:
            return closed.code

    async def write(self, data: bytes) -> None:
        """Send a message, at the reader's pace. Raises SocketClosed."""
        await self._put({"type": "websocket.send", "bytes": data})

    async def _put(self, message: Any) -> None:
        try:
            await self._send(message)
        except Exception as error:  # uvicorn's own class for a client that is gone
            raise SocketClosed(1006) from error

    async def close(self, code: int) -> None:
        """Close the WebSocket. Does nothing where the other end is gone."""
        if not self._over:
            with contextlib.suppress(Exception):
                await self._send({"type": "websocket.close", "code": code})


class JoinedLine(Protocol):
    """One of two lines whose messages go on to each other."""

    @property
    def full(self) -> bool:
        """Return whether what was sent waits for a slow reader."""

    def send_on(self, data: bytes) -> None:
        """Send a message of the other line on."""

    def hold(self, wanted: bool) -> None:
        """Stop reading from this line, or go on."""


class _OwnWords(ServerProtocol):
    """Refuses what is no handshake of a WebSocket with a problem, as the API answers."""

    def reject(self, status: HTTPStatus | int, text: str) -> Response:
        """Return the answer that refuses a handshake."""
        code, detail = "malformed_request", "this is not a WebSocket's handshake in HTTP/1.1"
        if status >= 500:
            code, detail = "internal", "this is a bug in Holdfast"
        title = HTTPStatus(status).phrase
        problem = Problem(title=title, status=int(status), code=code, detail=detail)
        answer = super().reject(status, encode(problem).decode())
        del answer.headers["Content-Type"]
        answer.headers["Content-Type"] = PROBLEM_TYPE
        return answer


class JoinableProtocol(WebSocketsSansIOProtocol):
    """A WebSocket of uvicorn's that can be joined with another line."""

    _partner: JoinedLine | None = None
    _moved = False
    _acked = 0

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self.conn = _OwnWords(max_size=self.config.ws_max_size, logger=self.logger)

    async def run_asgi(self) -> None:
        """Serve the application, which finds this protocol in its scope."""
        app, whole_scope = self.app, cast(Any, self.scope)
        whole_scope[_LINE] = self

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)
            if self.transport.is_closing():  # no handshake is owed to a client that left
                raise ClientDisconnected

        self.app = serve
        await super().run_asgi()

    def join(self, partner: JoinedLine) -> None:
        """Send on to `partner` all messages that come from now on, and those that wait."""
        self._partner = partner
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        waiting = [self.queue.get_nowait() for _ in range(self.queue.qsize())]
        for message in waiting:
            data = message.get("bytes")
            if isinstance(data, bytes):
                partner.send_on(data)
            else:
                self.queue.put_nowait(message)
        if self.read_paused:
            self.read_paused = False
            self.hold(False)

    def send_receive_event_to_app(self) -> None:
        """Send a whole message on to the partner, where there is one."""
        if self._partner is None or self.close_sent:
            super().send_receive_event_to_app()
            return
        data, self.frames = b"".join(self.frames), []
        self._partner.send_on(data)
        if self._partner.full:
            self.hold(True)

    def send_on(self, data: bytes) -> None:
        """See `JoinedLine.send_on`."""
        if not (self.transport.is_closing() or self.close_sent):
            self.conn.send_binary(data)
            self.transport.writelines(self.conn.data_to_send())

    @property
    def full(self) -> bool:
        """See `JoinedLine.full`."""
        return not self.writable.is_set()

    def hold(self, wanted: bool) -> None:
        """See `JoinedLine.hold`."""
        if not self.transport.is_closing():
            if wanted:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    async def send(self, message: Any) -> None:
        """Send a message of the application. Raises ClientDisconnected where a joined line takes
        nothing more in time."""
        says = message["type"] == "websocket.send"
        most = _MESSAGE_SECONDS if says else _CLOSE_SECONDS
        try:
            async with asyncio.timeout(None if self._partner is None else most):
                await super().send(message)
        except TimeoutError:
            if not says:
                self.transport.abort()
            raise ClientDisconnected from None

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection; the event loop calls this."""
        super().connection_lost(exc)
        if self._partner is not None:
            self._partner.hold(False)  # it is read again, up to the word of its own end

    def data_received(self, data: bytes) -> None:
        """Note that bytes move, and read them; the event loop calls this."""
        self._moved = True
        super().data_received(data)

    def handle_ping(self) -> None:
        """Answer a ping, unless bytes wait already: those are a sign of life, too."""
        if self.full:
            self.conn.data_to_send()
        else:
            super().handle_ping()

    def keepalive_timeout(self) -> None:
        """Give an end up on whose line nothing moves (SPLICE-2), else look again later. An end whose
        answer may wait behind what it sends gets a sign of life meanwhile. Of an end that is not
        read, because its partner takes nothing, nothing is known."""
        acked = count_acked(self.transport.get_extra_info("socket"))
        heard, took = self._moved, acked != self._acked
        self._moved, self._acked = False, acked
        if heard or took or (self._partner is not None and self._partner.full):
            if heard or not took:  # the sign itself is taken, and proves nothing
                self._say_pong()
            assert self.ping_timeout is not None
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # a close would wait for the bytes that nothing takes

    def _say_pong(self) -> None:
        if not (self.transport.is_closing() or self.close_sent or self.full):
            self.conn.send_pong(b"")
            self.transport.writelines(self.conn.data_to_send())

    def pause_writing(self) -> None:
        """Hold the partner up; the event loop calls this."""
        super().pause_writing()
        if self._partner is not None:
            self._partner.hold(True)

    def resume_writing(self) -> None:
        """Let the partner go on; the event loop calls this."""
        super().resume_writing()
        if self._partner is not None:
            self._partner.hold(False)


def join(one: Socket, other: Socket) -> None:
    """Join two WebSockets. What one of them said before it went is still sent on to the other."""
    one.line.join(other.line)
    other.line.join(one.line)
