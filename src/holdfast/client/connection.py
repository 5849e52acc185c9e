"""The connection of a client, written once for the blocking one and the asyncio one: its steps are
coroutines, which in the blocking client never wait for an event loop (see `http.streams`)."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import msgspec

from holdfast.client.download import receive
from holdfast.client.follow import Follow, ReconnectDelays
from holdfast.client.locate import locate
from holdfast.client.rest import RestCall
from holdfast.client.scripts import Caller, FetchFile, SendFile, Sleep, Step, UseCaller
from holdfast.client.sse import EventStreamReader, ServerEvent
from holdfast.client.transport import (
    NO_WATCH,
    AnswerWatch,
    explain_loss,
    file_request,
    held_seconds,
    http_options,
    refuse,
    request_of,
    stream_request,
    tell_note,
    warn,
)
from holdfast.errors import ConnectionLost, NeverConnected, Unavailable
from holdfast.http.courier import HttpClient, HttpExchange, HttpRequest

T = TypeVar("T")


class ClientConnection(HttpClient):
    """Sends calls, pages through lists and follows streams. on_note: called with each note of the
    controller about a call that it accepted; by default the note is a warning
    (`HoldfastWarning`)."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 10.0,
        ca_file: str | None = None,
        context: str | None = None,
        watch: AnswerWatch = NO_WATCH,
    ) -> None:
        place = locate(url, token, context=context)
        self.place = msgspec.structs.replace(place, ca_file=ca_file or place.ca_file)
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self.on_note: Callable[[str], None] = warn
        self._watch = watch
        super().__init__(**http_options(self.place, timeout_seconds))

    async def _sleep(self, seconds: float) -> None:
        """Wait."""
        raise NotImplementedError

    async def _use_caller(self, work: Callable[[Caller], Any]) -> Any:
        """Call `work` with a sender of calls that waits for their answers, and return its result."""
        raise NotImplementedError

    async def _call(self, call: RestCall[T]) -> T:
        """Send one call, again where that is harmless, and return its answer."""
        delays = ReconnectDelays(self._retry_seconds)
        while True:
            try:
                return call.read(await self._ask(request_of(call, self._timeout_seconds)))
            except Unavailable as error:
                again = call.repeatable or isinstance(error, NeverConnected)
                delay = delays.next_delay(random.random()) if again else None
                if delay is None:
                    raise explain_loss(self.place, error) from error
            await self._sleep(delay)

    @asynccontextmanager
    async def _open(self, request: HttpRequest) -> AsyncIterator[HttpExchange]:
        """Send a request, whose answer can be read in the block. Raises HoldfastError for a
        refusal."""
        self._watch.ask(held_seconds(request))
        exchange = await self._courier.open(request)
        try:
            self._watch.hear()
            if exchange.answer.status >= 300:
                raise refuse(self.place, exchange.answer.status, await exchange.read_all(None))
            yield exchange
        finally:
            self._courier.finish(exchange)

    async def _ask(self, request: HttpRequest) -> bytes:
        async with self._open(request) as exchange:
            data = await exchange.read_all(None)
        tell_note(exchange.answer.headers, self.on_note)
        return data

    async def _do(self, step: Step) -> Any:
        if isinstance(step, RestCall):
            return await self._call(step)
        if isinstance(step, Sleep):
            return await self._sleep(step.seconds)
        if isinstance(step, UseCaller):
            return await self._use_caller(step.work)
        try:
            return await (self._fetch(step) if isinstance(step, FetchFile) else self._upload(step))
        except ConnectionLost as error:
            raise explain_loss(self.place, error) from error

    async def _fetch(self, wanted: FetchFile) -> None:
        request = HttpRequest(
            "GET", wanted.path, self._timeout_seconds, wanted.query, repeatable=True
        )
        async with self._open(request) as exchange:
            with receive(wanted.to, exchange.answer.headers) as download:
                while piece := await exchange.read():
                    download.add(piece)

    async def _upload(self, given: SendFile) -> bytes:
        request = file_request(given.path, given.query, given.file, self._timeout_seconds)
        return await self._ask(request)

    async def _stream(
        self, call: RestCall[Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[ServerEvent, None]:
        reader = EventStreamReader()
        async with self._open(stream_request(call, headers)) as exchange:
            while data := await exchange.read():
                for event in reader.feed(data):
                    yield event

    async def _follow(self, stream: Follow[T]) -> AsyncGenerator[T, None]:
        """Yield the items that the follower finds in its stream, until the follower has ended."""
        follower, delays = stream.follower, ReconnectDelays(stream.retry_seconds)
        while True:
            call, headers = follower.request()
            failure: Unavailable = ConnectionLost("the stream was closed")
            try:
                async with aclosing(self._stream(call, headers)) as events:
                    async for event in events:
                        delays.succeed()
                        for item in follower.read_event(event):
                            yield item
                        if follower.ended:
                            return
            except Unavailable as error:
                failure = error
            delay = delays.next_delay(random.random())
            if delay is None:
                raise explain_loss(self.place, failure) from failure
            await self._sleep(delay)
