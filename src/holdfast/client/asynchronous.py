"""The asyncio client: one connection, which runs the scripts of the methods."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from holdfast.client.download import PIECE_BYTES, describe_file, read_pieces, receive
from holdfast.client.follow import Follow, ReconnectDelays
from holdfast.client.http_library import (
    client_options,
    explain_proxies,
    httpx,
    name_loss,
    request_options,
)
from holdfast.client.locate import ControllerPlace, locate
from holdfast.client.methods.arrays import ArrayMethods
from holdfast.client.methods.calls import CallMethods
from holdfast.client.methods.checkpoints import CheckpointMethods
from holdfast.client.methods.jobs import JobMethods
from holdfast.client.methods.operate import OperateMethods
from holdfast.client.methods.pools import PoolMethods
from holdfast.client.methods.schedules import ScheduleMethods
from holdfast.client.methods.webhooks import WebhookMethods
from holdfast.client.methods.workflows import WorkflowMethods
from holdfast.client.rest import PageCall, RestCall
from holdfast.client.scripts import Awaited, FetchFile, Script, SendFile, Sleep, Step
from holdfast.client.sse import EventStreamReader, ServerEvent
from holdfast.client.transport import (
    ConnectionLost,
    NeverConnected,
    refuse,
    request_of,
    stream_request,
    tell_note,
    unreachable,
    warn,
)
from holdfast.errors import HoldfastError, Unavailable

if TYPE_CHECKING:
    from holdfast.client.sessions.asynchronous import AsyncTaskSession
    from holdfast.wire.sessions.messages import Kind

T = TypeVar("T")
LINGER_SECONDS = 600.0  # as long as hosts keep a session whose user is gone


class AsyncRestConnection(Awaited):
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
        transport: httpx.AsyncBaseTransport | None = None,
        event_hooks: Mapping[str, list[Any]] | None = None,
    ) -> None:
        self.place: ControllerPlace = locate(url, token, context=context)
        ca_file = ca_file or self.place.ca_file
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self._ca_file = ca_file
        self.on_note: Callable[[str], None] = warn
        options = client_options(self.place, timeout_seconds, ca_file)
        with explain_proxies():
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

    async def open_session(
        self,
        job_id: str,
        argv: Sequence[str] = (),
        *,
        kind: "Kind" = "exec",
        rank: int = 0,
        tty: bool = False,
        rows: int = 0,
        cols: int = 0,
        term: str = "",
        port: int = 0,
        session: str = "",
        watch: bool = False,
        on_lost: Callable[[str], None] = lambda sentence: None,
        linger_seconds: float = LINGER_SECONDS,
    ) -> "AsyncTaskSession":
        """Open a session in a running task, and return it once it has begun.

        argv: the command; empty for the user's shell. tty: True for a terminal of `rows` × `cols`.
        session: a session to link to, instead of a new one; watch: only to read along. on_lost:
        called, in another thread, with a sentence where the
        link breaks, and with an empty one where it works again.
        linger_seconds: how long a link that broke is tried anew; 0: not at all.
        """
        from holdfast.client.sessions.asynchronous import AsyncTaskSession
        from holdfast.client.sessions.session import TaskSession
        from holdfast.wire.sessions.messages import SessionRequest

        asked = SessionRequest(
            kind=kind, rank=rank, argv=list(argv), tty=tty, rows=rows, cols=cols,
            term=term, port=port, session=session, watch=watch,
        )  # fmt: skip
        opened = await asyncio.to_thread(
            TaskSession,
            self.place,
            job_id,
            asked,
            ca_file=self._ca_file,
            on_lost=on_lost,
            linger_seconds=linger_seconds,
        )
        return AsyncTaskSession(opened)

    async def call(self, call: RestCall[T]) -> T:
        """Send one call, again where that is harmless, and return its answer."""
        delays = ReconnectDelays(self._retry_seconds)
        while True:
            try:
                return await self._send(call)
            except (httpx.TransportError, Unavailable) as failure:
                error = _name_failure(failure)
                again = call.repeatable or isinstance(error, NeverConnected)
                delay = delays.next_delay(random.random()) if again else None
                if delay is None:
                    raise self._refusal(error) from error
            await asyncio.sleep(delay)

    async def _send(self, call: RestCall[T]) -> T:
        request = request_of(call, self._timeout_seconds)
        answer = await self._http.request(**request_options(request, self._timeout_seconds))
        if answer.status_code >= 300:
            raise refuse(self.place, answer.status_code, answer.content)
        tell_note(answer.headers, self.on_note)
        return call.read(answer.content)

    def _refusal(self, error: Exception) -> Unavailable:
        return error if isinstance(error, Unavailable) else unreachable(self.place, error)

    async def perform(self, begin: Callable[[], Script[T]]) -> T:
        """Carry out the steps of a script, and return its result. A step's failure is raised inside
        the script."""
        script = begin()
        go_on: Callable[[], Step] = partial(next, script)
        while True:
            try:
                step = go_on()
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                go_on = partial(script.send, await self._do(step))
            except HoldfastError as error:
                go_on = partial(script.throw, error)

    async def _do(self, step: Step) -> Any:
        if isinstance(step, RestCall):
            return await self.call(step)
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        try:
            return await (self._fetch(step) if isinstance(step, FetchFile) else self._upload(step))
        except httpx.TransportError as error:
            raise unreachable(self.place, error) from error

    async def _fetch(self, wanted: FetchFile) -> None:
        async with self._http.stream("GET", wanted.path, params=wanted.query) as answer:
            if answer.status_code >= 300:
                raise refuse(self.place, answer.status_code, await answer.aread())
            with receive(wanted.to, answer.headers) as download:
                async for piece in answer.aiter_raw(PIECE_BYTES):
                    download.add(piece)

    async def _upload(self, given: SendFile) -> bytes:
        async def pieces() -> AsyncIterator[bytes]:
            for piece in read_pieces(given.file):
                yield piece

        headers = describe_file(given.file)
        answer = await self._http.put(
            given.path, params=given.query, content=pieces(), headers=headers
        )
        if answer.status_code >= 300:
            raise refuse(self.place, answer.status_code, answer.content)
        return answer.content

    async def each(self, source: PageCall[T] | Follow[T]) -> AsyncIterator[T]:
        """Yield every item; a page is fetched when its first item is asked for."""
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

    async def _stream(
        self, call: RestCall[Any], headers: Mapping[str, str]
    ) -> AsyncIterator[ServerEvent]:
        reader = EventStreamReader()
        options = request_options(stream_request(call, headers), self._timeout_seconds)
        async with self._http.stream(**options) as answer:
            if answer.status_code >= 300:
                raise refuse(self.place, answer.status_code, await answer.aread())
            async for data in answer.aiter_bytes():
                for event in reader.feed(data):
                    yield event

    async def _follow(self, stream: Follow[T]) -> AsyncIterator[T]:
        """Yield the items that the follower finds in its stream, until the follower has ended."""
        follower, delays = stream.follower, ReconnectDelays(stream.retry_seconds)
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
            except (httpx.TransportError, Unavailable) as error:
                failure = _name_failure(error)
            delay = delays.next_delay(random.random())
            if delay is None:
                raise self._refusal(failure or EOFError("the stream was closed")) from failure
            await asyncio.sleep(delay)


class AsyncClient(
    JobMethods,
    OperateMethods,
    PoolMethods,
    ArrayMethods,
    ScheduleMethods,
    WebhookMethods,
    WorkflowMethods,
    CheckpointMethods,
    CallMethods,
    AsyncRestConnection,
):
    """A connection to a controller. One event loop uses it, as an `async with` block or up to
    `close()`.

    Args:
        url, token: the controller and the caller's token; `holdfast.client.locate` finds them where
            they are left out.
        timeout_seconds: how long to wait for one answer.
        retry_seconds: how long lost connections are tried again, for calls where that is harmless.
        ca_file: certificates to trust instead of the system's. [default: the context's, or
            HOLDFAST_CA_FILE]
        context: the name of the server, as `holdfast login` keeps it, in place of `url`.
        transport: an `httpx.AsyncBaseTransport`, for tests.

    Raises (every method): the errors of `holdfast.errors`; `Unavailable` when the controller cannot
    be reached.
    """


def _name_failure(error: httpx.TransportError | Unavailable) -> ConnectionLost | Unavailable:
    return error if isinstance(error, Unavailable) else name_loss(error)
