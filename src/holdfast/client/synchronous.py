"""The blocking client: one connection, which runs the scripts of the methods."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.client.connection import ClientConnection
from holdfast.client.follow import Follow
from holdfast.client.methods.every import EveryMethod
from holdfast.client.methods.sessions import SessionMethods
from holdfast.client.rest import PageCall, RestCall
from holdfast.client.scripts import Blocking, Caller, Script, carry_out, list_each
from holdfast.http.blocking import BlockingDialer, run_now

T = TypeVar("T")


class RestConnection(ClientConnection, Blocking):
    """A `ClientConnection` whose methods block."""

    _dialer = BlockingDialer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def call(self, call: RestCall[T]) -> T:
        """Send one call, again where that is harmless, and return its answer."""
        return run_now(self._call(call))

    def perform(self, begin: Callable[[], Script[T]]) -> T:
        """Carry out the steps of a script, and return its result."""
        return run_now(carry_out(begin(), self._do))

    def each(self, source: PageCall[T] | Follow[T]) -> Iterator[T]:
        """Yield every item; a page is fetched when its first item is asked for."""
        items = list_each(source, self._call, self._follow)
        try:
            while True:
                try:
                    item = run_now(anext(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            run_now(items.aclose())

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # nothing else runs in this thread

    async def _use_caller(self, work: Callable[[Caller], Any]) -> Any:
        return work(self)


class Client(EveryMethod, SessionMethods, RestConnection):
    """A connection to a controller. Threads may share it, in a `with` block or up to `close()`.

    Args:
        url, token: the controller, or several of one cluster with commas between, and the caller's
            token; `holdfast.client.locate` finds them where they are left out.
        timeout_seconds: how long to wait for one answer.
        retry_seconds: how long lost connections are tried again, for calls where that is harmless.
        ca_file: certificates to trust instead of the system's. [default: the context's, or
            HOLDFAST_CA_FILE]
        context: the name of the server, as `holdfast login` keeps it, in place of `url`.
        watch: the functions called at each request and at each answer's head.

    Raises (every method): the errors of `holdfast.errors`; `Unavailable` when the controller cannot
    be reached.
    """
