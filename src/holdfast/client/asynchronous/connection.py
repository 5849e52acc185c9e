"""One connection to a controller: it sends calls, pages through lists and follows streams."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.client.calls import RestCall, ResultPage
from holdfast.client.follow import ReconnectDelays, StreamFollower
from holdfast.client.http_library import httpx
from holdfast.client.locate import ControllerPlace, locate
from holdfast.client.sse import EventStreamReader, ServerEvent
from holdfast.client.transport import (
    LOST,
    client_options,
    is_worth_retrying,
    refuse,
    request_options,
    stream_options,
    unreachable,
)
from holdfast.errors import Unavailable

T = TypeVar("T")


class AsyncRestConnection:
    """What the client's groups of methods share."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 10.0,
        ca_file: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        event_hooks: Mapping[str, list[Any]] | None = None,
    ) -> None:
        self.place: ControllerPlace = locate(url, token)
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        options = client_options(self.place, timeout_seconds, ca_file)
        self._http = httpx.AsyncClient(transport=transport, event_hooks=event_hooks, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def call(self, call: RestCall[T]) -> T:
        """Send one call, again where that is harmless, and return its answer."""
        delays = ReconnectDelays(self._retry_seconds)
        while True:
            try:
                return await self._send(call)
            except (*LOST, Unavailable) as error:
                again = is_worth_retrying(call, error)
                delay = delays.next_delay(random.random()) if again else None
                if delay is None:
                    raise self._refusal(error) from error
            await asyncio.sleep(delay)

    async def _send(self, call: RestCall[T]) -> T:
        answer = await self._http.request(call.method, call.path, **request_options(call))
        if answer.status_code >= 300:
            raise refuse(self.place, answer.status_code, answer.content)
        return call.read(answer.content)

    def _refusal(self, error: Exception) -> Unavailable:
        return error if isinstance(error, Unavailable) else unreachable(self.place, error)

    async def pages(self, call: RestCall[ResultPage[T]]) -> AsyncIterator[T]:
        """Yield every item of a list; a page is fetched when its first item is asked for."""
        while True:
            page = await self.call(call)
            for item in page.items:
                yield item
            if page.next is None:
                return
            call = call.at(page.next)

    async def _list(self, call: RestCall[ResultPage[T]]) -> list[T]:
        return [item async for item in self.pages(call)]

    async def _stream(
        self, call: RestCall[Any], headers: Mapping[str, str]
    ) -> AsyncIterator[ServerEvent]:
        reader = EventStreamReader()
        options = stream_options(call, headers, self._timeout_seconds)
        async with self._http.stream(call.method, call.path, **options) as answer:
            if answer.status_code >= 300:
                raise refuse(self.place, answer.status_code, await answer.aread())
            async for data in answer.aiter_bytes():
                for event in reader.feed(data):
                    yield event

    async def _follow(self, follower: StreamFollower[T], retry_seconds: float) -> AsyncIterator[T]:
        """Yield what the follower takes from its stream, until the follower has ended."""
        delays = ReconnectDelays(retry_seconds)
        while True:
            call, headers = follower.request()
            failure: Exception | None = None
            try:
                async for event in self._stream(call, headers):
                    delays.succeed()
                    for item in follower.take(event):
                        yield item
                    if follower.ended:
                        return
            except (*LOST, Unavailable) as error:
                failure = error
            delay = delays.next_delay(random.random())
            if delay is None:
                raise self._refusal(failure or EOFError("the stream was closed")) from failure
            await asyncio.sleep(delay)
