"""A connection that sends several statements in one round trip, through the driver's pipeline."""

import select
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import generators

MAX_PREPARED = 150
"""Statements that a connection keeps prepared; each costs the server some 50 KiB."""
SERVER_FAILED = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.IdleInTransactionSessionTimeout,
)
"""The driver's errors where a server is down, goes down, or accepts no writes."""


class Statement(msgspec.Struct, frozen=True):
    """A statement with placeholders `%(name)s`, and the values for them. prepared: the server keeps
    its plan; otherwise it plans for these values. binary: rows come in the server's binary format,
    which halves what a large bytea costs."""

    query: bytes
    params: Mapping[str, Any] | None = None
    prepared: bool = True
    binary: bool = False


class StatementResult(msgspec.Struct, frozen=True):
    """The result of a statement. count: number of rows that it returned or changed."""

    rows: list[dict[str, Any]]
    count: int


class Connection(psycopg.AsyncConnection[dict[str, Any]]):
    """A connection of the driver that runs several statements at once."""

    async def run_all(self, statements: Sequence[Statement]) -> list[StatementResult]:
        """Run statements in order, in one round trip; each sees the effects of those before it.

        Raises psycopg.Error for the first that failed; those after it were not run then.
        """
        if len(statements) == 1:
            return [await _read(await self._send(statements[0]))]
        async with self.pipeline():
            cursors = [await self._send(one) for one in statements]
        return [await _read(cursor) for cursor in cursors]

    async def _send(self, one: Statement) -> psycopg.AsyncCursor[dict[str, Any]]:
        prepare = None if one.prepared else False
        return await self.execute(one.query, one.params, prepare=prepare, binary=one.binary)

    async def roll_back(self) -> None:
        """Undo the transaction. The driver's own rollback is not used, because it drops every
        prepared plan."""
        async with self.lock:
            self.pgconn.send_query(b"rollback")
            await self.wait(generators.execute(self.pgconn))

    def check_open(self) -> None:
        """Raise OperationalError where the server has closed the connection, so that no statement
        is sent that would not be carried out."""
        look = select.poll()
        look.register(self.pgconn.socket, select.POLLIN)
        while look.poll(0):
            self.pgconn.consume_input()


async def _read(cursor: psycopg.AsyncCursor[dict[str, Any]]) -> StatementResult:
    rows = [] if cursor.description is None else await cursor.fetchall()
    return StatementResult(rows, max(cursor.rowcount, 0))


def is_lost(error: psycopg.Error) -> bool:
    """Return whether an error means that the connection is gone, so that another connection may
    succeed."""
    state = error.sqlstate
    closed = isinstance(error, psycopg.InterfaceError) or state is None
    return closed or str(state)[:3] in ("57P", "25P", "08")
