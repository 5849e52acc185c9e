"""The asyncio client: one connection, which runs the scripts of the methods."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.client.connection import ClientConnection
from holdfast.client.follow import Follow
from holdfast.client.methods.every import EveryMethod
from holdfast.client.methods.sessions import SessionMethods
from holdfast.client.rest import PageCall, RestCall
from holdfast.client.scripts import Awaited, Caller, list_each
from holdfast.http.asynchronous import AsyncDialer

T = TypeVar("T")


class AsyncRestConnection(ClientConnection, Awaited):
    """A `ClientConnection` whose methods are awaited."""

    _dialer = AsyncDialer()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:  # type: ignore[override]  # its users await it
        """Close the connections."""
        super().close()

    async def call(self, call: RestCall[T]) -> T:
        """Send one call, again where that is harmless, and return its answer."""
        return await self._call(call)

    def each(self, source: PageCall[T] | Follow[T]) -> AsyncIterator[T]:
        """Yield every item; a page is fetched when its first item is asked for."""
        return list_each(source, self._call, self._follow)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _use_caller(self, work: Callable[[Caller], Any]) -> Any:
        return await asyncio.to_thread(work, _ThreadCaller(self, asyncio.get_running_loop()))


class _ThreadCaller:
    """Sends calls from threads over a connection that its loop uses."""

    def __init__(self, connection: AsyncRestConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection, self._loop = connection, loop
        self.place = connection.place

    def call(self, call: RestCall[T]) -> T:
        return asyncio.run_coroutine_threadsafe(self._connection.call(call), self._loop).result()


class AsyncClient(EveryMethod, SessionMethods, AsyncRestConnection):
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
