"""The asyncio client: one connection, which runs the scripts of the methods."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from holdfast.client.download import receive
from holdfast.client.follow import Follow, ReconnectDelays
from holdfast.client.locate import locate
from holdfast.client.methods.every import EveryMethod
from holdfast.client.rest import PageCall, RestCall
from holdfast.client.scripts import Awaited, FetchFile, SendFile, Sleep, Step, UseCaller
from holdfast.client.sse import EventStreamReader, ServerEvent
from holdfast.client.transport import (
    explain_loss,
    file_request,
    http_options,
    refuse,
    request_of,
    stream_request,
    tell_note,
    warn,
)
from holdfast.errors import ConnectionLost, NeverConnected, Unavailable
from holdfast.http.asynchronous import AsyncHttp
from holdfast.http.courier import HttpRequest

if TYPE_CHECKING:
    from holdfast.client.data.copy import CopyProgress
    from holdfast.client.sessions.asynchronous import AsyncTaskSession
    from holdfast.client.sessions.forward import PortForward
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
    ) -> None:
        place = locate(url, token, context=context)
        self.place = msgspec.structs.replace(place, ca_file=ca_file or place.ca_file)
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self.on_note: Callable[[str], None] = warn
        self._http = AsyncHttp(**http_options(self.place, timeout_seconds))

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
        self._http.close()

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
            TaskSession, self.place, job_id, asked, on_lost=on_lost, linger_seconds=linger_seconds
        )
        return AsyncTaskSession(opened)

    async def copy_from(
        self, job_id: str, paths: Sequence[str], to: str, *, rank: int = 0
    ) -> "CopyProgress":
        """Copy files and folders of a running task below `to`, as `holdfast cp JOB:PATH… TO` does,
        in a thread. Raises HoldfastError, OSError; the same call then goes on."""
        from holdfast.client.synchronous import Client

        url = ",".join(self.place.urls or (self.place.url,))
        with Client(url, self.place.token, ca_file=self.place.ca_file) as client:
            return await asyncio.to_thread(client.copy_from, job_id, paths, to, rank=rank)

    async def copy_to(
        self, job_id: str, paths: Sequence[str], to: str = "", *, rank: int = 0
    ) -> "CopyProgress":
        """Copy files and folders of this machine to a running task, as `holdfast cp PATH… JOB:TO`
        does, in a thread. Raises HoldfastError, OSError; the same call then goes on."""
        from holdfast.client.synchronous import Client

        url = ",".join(self.place.urls or (self.place.url,))
        with Client(url, self.place.token, ca_file=self.place.ca_file) as client:
            return await asyncio.to_thread(client.copy_to, job_id, paths, to, rank=rank)

    async def forward_port(
        self,
        job_id: str,
        port: int,
        *,
        local_port: int | None = 0,
        address: str = "127.0.0.1",
        rank: int = 0,
        on_refused: Callable[[str], None] = lambda sentence: None,
        on_notice: Callable[[str], None] = lambda sentence: None,
    ) -> "PortForward":
        """Listen here, and carry each connection to a port on which a process of a running task
        listens, until the forward is closed or the job ends.

        local_port: the port here; 0 for any free one, None for the same number. on_refused: called
        with a sentence for each connection that could not be made. Raises OSError where the port
        here is taken.
        """
        from holdfast.client.sessions.forward import PortForward

        return PortForward(
            self.place,
            job_id,
            port,
            local_port=local_port,
            address=address,
            rank=rank,
            on_refused=on_refused,
            on_notice=on_notice,
        )

    async def call(self, call: RestCall[T]) -> T:
        """Send one call, again where that is harmless, and return its answer."""
        delays = ReconnectDelays(self._retry_seconds)
        while True:
            try:
                return await self._send(call)
            except Unavailable as error:
                again = call.repeatable or isinstance(error, NeverConnected)
                delay = delays.next_delay(random.random()) if again else None
                if delay is None:
                    raise explain_loss(self.place, error) from error
            await asyncio.sleep(delay)

    async def _send(self, call: RestCall[T]) -> T:
        return call.read(await self._ask(request_of(call, self._timeout_seconds)))

    async def _ask(self, request: HttpRequest) -> bytes:
        answer = await self._http.call(request)
        if answer.status >= 300:
            raise refuse(self.place, answer.status, answer.body)
        tell_note(answer.headers, self.on_note)
        return answer.body

    async def _do(self, step: Step) -> Any:
        if isinstance(step, RestCall):
            return await self.call(step)
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, UseCaller):
            caller = _ThreadCaller(self, asyncio.get_running_loop())
            return await asyncio.to_thread(step.work, caller)
        try:
            return await (self._fetch(step) if isinstance(step, FetchFile) else self._upload(step))
        except ConnectionLost as error:
            raise explain_loss(self.place, error) from error

    async def _fetch(self, wanted: FetchFile) -> None:
        request = HttpRequest(
            "GET", wanted.path, self._timeout_seconds, wanted.query, repeatable=True
        )
        async with self._http.send(request) as answer:
            if answer.status >= 300:
                raise refuse(self.place, answer.status, await answer.read())
            with receive(wanted.to, answer.headers) as download:
                async for piece in answer.pieces():
                    download.add(piece)

    async def _upload(self, given: SendFile) -> bytes:
        request = file_request(given.path, given.query, given.file, self._timeout_seconds)
        return await self._ask(request)

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
        async with self._http.send(stream_request(call, headers)) as answer:
            if answer.status >= 300:
                raise refuse(self.place, answer.status, await answer.read())
            async for data in answer.pieces():
                for event in reader.feed(data):
                    yield event

    async def _follow(self, stream: Follow[T]) -> AsyncIterator[T]:
        """Yield the items that the follower finds in its stream, until the follower has ended."""
        follower, delays = stream.follower, ReconnectDelays(stream.retry_seconds)
        while True:
            call, headers = follower.request()
            failure: Unavailable = ConnectionLost("the stream was closed")
            try:
                async for event in self._stream(call, headers):
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
            await asyncio.sleep(delay)


class _ThreadCaller:
    """Sends calls from threads over a connection that its loop uses."""

    def __init__(self, connection: AsyncRestConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection, self._loop = connection, loop
        self.place = connection.place

    def call(self, call: RestCall[T]) -> T:
        return asyncio.run_coroutine_threadsafe(self._connection.call(call), self._loop).result()


class AsyncClient(EveryMethod, AsyncRestConnection):
    """A connection to a controller. One event loop uses it, as an `async with` block or up to
    `close()`.

    Args:
        url, token: the controller, or several of one cluster with commas between, and the caller's
            token; `holdfast.client.locate` finds them where they are left out.
        timeout_seconds: how long to wait for one answer.
        retry_seconds: how long lost connections are tried again, for calls where that is harmless.
        ca_file: certificates to trust instead of the system's. [default: the context's, or
            HOLDFAST_CA_FILE]
        context: the name of the server, as `holdfast login` keeps it, in place of `url`.

    Raises (every method): the errors of `holdfast.errors`; `Unavailable` when the controller cannot
    be reached.
    """
