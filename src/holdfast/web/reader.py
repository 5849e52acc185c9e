"""The API as a page reads it: the client's methods, carried out by calls inside this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

from starlette.types import ASGIApp, Message

from holdfast.client.follow import Follow
from holdfast.client.methods.every import EveryMethod
from holdfast.client.rest import PageCall, RestCall, ResultPage, read_problem
from holdfast.client.scripts import Awaited, Step
from holdfast.client.sse import EventStreamReader
from holdfast.core.records import TokenRecord

T = TypeVar("T")
MAX_PIECES = 16
CALLER = "holdfast.caller"
"""The key under which the scope of a call inside this process holds its caller's token."""


class ApiReader(EveryMethod, Awaited):
    """The methods of the client that read, answered by `api` for the user of a token (WEB-1)."""

    def __init__(self, api: ASGIApp, token: TokenRecord) -> None:
        self._api, self.token = api, token

    async def call(self, call: RestCall[T]) -> T:
        """Make one call and return its answer. Raises HoldfastError as the API refuses."""
        status, body = await self._ask(call)
        if status >= 300:
            raise read_problem(status, body)
        return call.read(body)

    async def first(self, call: PageCall[T]) -> ResultPage[T]:
        """Return one page of a list, with the cursor of the next."""
        return await self.call(call)

    async def _do(self, step: Step) -> Any:
        assert isinstance(step, RestCall), "a page only reads"
        return await self.call(step)

    async def each(self, source: PageCall[T] | Follow[T]) -> AsyncIterator[T]:
        """Yield every item of a list, or of a stream until it breaks off."""
        if isinstance(source, Follow):
            async for item in self._follow(source):
                yield item
            return
        while True:
            page = await self.call(source)
            for item in page.items:
                yield item
            if page.next is None:
                return
            source = source.at(page.next)

    async def _follow(self, stream: Follow[T]) -> AsyncIterator[T]:
        call, headers = stream.follower.request()
        events = EventStreamReader()
        async with contextlib.aclosing(self.pieces(call, headers)) as pieces:
            async for data in pieces:
                for event in events.feed(data):
                    for item in stream.follower.read_event(event):
                        yield item
                    if stream.follower.ended:
                        return

    async def pieces(
        self, call: RestCall[Any], headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield an answer's bytes as they come. Raises HoldfastError as the API refuses."""
        queue: asyncio.Queue[Message | None] = asyncio.Queue(MAX_PIECES)
        scope = self._make_scope(call)
        scope["headers"] += [
            (name.lower().encode(), value.encode()) for name, value in (headers or {}).items()
        ]
        serving = asyncio.ensure_future(self._serve(scope, queue))
        serving.add_done_callback(lambda _: _put_end(queue))
        try:
            head = await queue.get()
            status = head["status"] if head else 500
            body = b""
            while (message := await queue.get()) is not None:
                piece = message.get("body", b"")
                if status >= 300:
                    body += piece
                elif piece:
                    yield piece
                if not message.get("more_body", False):
                    break
            if status >= 300:
                raise read_problem(status, body)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def _serve(self, scope: dict[str, Any], queue: asyncio.Queue[Message | None]) -> None:
        await self._api(scope, _make_receive(b""), queue.put)

    async def _ask(self, call: RestCall[Any]) -> tuple[int, bytes]:
        status, pieces = 0, []

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                pieces.append(message.get("body", b""))

        await self._api(self._make_scope(call), _make_receive(call.body or b""), send)
        return status, b"".join(pieces)

    def _make_scope(self, call: RestCall[Any]) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": call.method,
            "scheme": "http",
            "path": call.path,
            "raw_path": call.path.encode("latin-1"),
            "query_string": urlencode(call.query).encode("ascii"),
            "headers": [(b"content-type", b"application/json")],
            "client": None,
            "server": None,
            CALLER: self.token,
        }


def _put_end(queue: asyncio.Queue[Message | None]) -> None:
    with contextlib.suppress(asyncio.QueueFull):  # the reader has what follows still to read
        queue.put_nowait(None)


def _make_receive(body: bytes) -> Callable[[], Any]:
    """Return the receiving end of a call: the body, and then nothing until the call is over."""
    bodies = iter([body])

    async def receive() -> Message:
        left = next(bodies, None)
        if left is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left or b"", "more_body": False}

    return receive
