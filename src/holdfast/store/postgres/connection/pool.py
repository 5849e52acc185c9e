"""Pooled connections: the pool hands out the warmest one, and a wait for a frozen server is cut."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from holdfast.store.postgres.connection.pipeline import Connection


class _Stack(deque[Connection]):
    """A queue that returns first the connection that was added last."""

    def append(self, conn: Connection) -> None:
        self.appendleft(conn)


class WarmPool(AsyncConnectionPool[Connection]):
    """A pool that hands out the connection that was used last, where the library's own hands out
    the one that has rested longest.

    A server process needs milliseconds to read the catalog and to plan a statement that is new to
    it, so at idle every call must use the same warm one.

    CUT-3  A connection that comes back is looked at, without a word to the server, and is closed
           where the next call would not find it as a new one.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, connection_class=Connection, **more)
        self._pool = _Stack()

    @asynccontextmanager
    async def lend(self, wait_seconds: float, use_seconds: float) -> AsyncIterator[Connection]:
        """Lend a connection that comes up within `wait_seconds`, and cut it after `use_seconds`.

        Raises psycopg_pool.PoolTimeout, PoolClosed.
        """
        conn = await self.getconn(timeout=wait_seconds)
        try:
            with cut_after(conn, use_seconds):
                yield conn
        finally:
            if not conn.is_at_rest():
                conn.cut()
            # A cancel finds nothing to cut here, because the pool awaits nothing for a connection
            # that is closed or at rest.
            await self.putconn(conn)


class cut_after:
    """Cut a connection at its socket after `seconds`, because nothing else ends a wait for a frozen
    server."""

    def __init__(self, conn: Connection, seconds: float) -> None:
        self._conn = conn
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(0.05, self._seconds), self._cut)

    def __exit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _cut(self) -> None:
        try:
            with socket.socket(fileno=os.dup(self._conn.fileno())) as copy:
                copy.shutdown(socket.SHUT_RDWR)
        except (OSError, psycopg.Error):
            pass  # it is closed already
