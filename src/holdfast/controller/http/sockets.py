"""WebSockets as handlers use them, over ASGI."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from starlette.types import Receive, Scope, Send

from holdfast.controller.http.problems import answer_problem
from holdfast.errors import HoldfastError
from holdfast.wire.sessions.frames import REFUSED

_HEAD_SECONDS = 10.0


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
