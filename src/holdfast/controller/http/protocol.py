"""uvicorn's HTTP protocol with limits on a request's head: bytes, headers and time.

- A connection that has not sent a whole request head in time is closed: at its opening, after
  a half request, and between requests alike. A body's time is bounded where it is read.
- A head over its limits is answered 431 and the connection closed; nothing of it is kept.
HTTP-3  A refused client can read why: a connection that is closed while its peer still sends is
        reset, and the peer loses what it has not read yet. So only the sending side is closed
        first, and incoming bytes are dropped for `LINGER_SECONDS`.
HTTP-4  The head of an answer leaves with the first part of its body, in one write, because each write
        wakes the reader; or by itself in the loop's next turn.
"""

import asyncio
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.wire.api import Problem

HEAD_SECONDS = 15.0
MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100
LINGER_SECONDS = 1.0
JOINED_BYTES = 1 << 16  # a larger part is worth a write of its own, and is not copied


class JoiningTransport:
    """A connection's transport that holds a head back until its body comes (HTTP-4)."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send `data` after what was written before."""
        if self._head and len(data) < JOINED_BYTES:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        elif not self._head and data.startswith(b"HTTP/"):
            self._head = data
            self._loop.call_soon(self._send_head)
        else:
            self._send_head()
            self._transport.write(data)

    def write_eof(self) -> None:
        """Close the sending side once all is sent."""
        self._send_head()
        self._transport.write_eof()

    def close(self) -> None:
        """Close the connection once all is sent."""
        self._send_head()
        self._transport.close()

    def _send_head(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)


class BoundedProtocol(HttpToolsProtocol):
    """One HTTP connection, with the limits of this module."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = True
    _refused = False

    def connection_made(self, transport: Any) -> None:
        joining: Any = JoiningTransport(transport, self.loop)
        super().connection_made(joining)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and len(data) <= MAX_HEAD_BYTES:
                # Pieces of one head that add up; a single large piece is judged by its headers.
                detail = f"the request's head is over {MAX_HEAD_BYTES} bytes"
                return self._refuse(431, "header_too_large", detail)
            if self._head_timer is None:
                self._start_head_timer()
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) <= MAX_HEAD_BYTES:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) <= MAX_HEADERS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        self._in_head = False
        self._head_bytes = 0
        if self._refused:
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
            detail = (
                f"a request has at most {MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes of them"
            )
            return self._refuse(431, "header_too_large", detail)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing() and not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.transport.is_closing() and not self._refused:
            super().on_message_complete()
        self._in_head = True

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "malformed_request", "this is not a request in HTTP/1.1")

    def _start_head_timer(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._refuse(408, "request_timeout", f"no whole request came within {HEAD_SECONDS:g} s")

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Answer without the application and close (HTTP-3)."""
        if self._refused:
            return
        self._refused = True
        title = HTTPStatus(status).phrase
        body = msgspec.json.encode(Problem(title=title, status=status, code=code, detail=detail))
        head = (
            f"HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._stop_head_timer()
        # An error must not be written into the middle of another answer.
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(head.encode() + body)
            if self.transport.can_write_eof():  # TLS has no half of a connection to close
                self.transport.write_eof()
                self.loop.call_later(LINGER_SECONDS, self.transport.close)
                return
        self.transport.close()
