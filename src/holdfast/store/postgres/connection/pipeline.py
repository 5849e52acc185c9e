"""A connection that sends several statements in one round trip, through the driver's pipeline."""

import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg
from psycopg import generators
from psycopg.pq import PipelineStatus, TransactionStatus

MAX_PREPARED = 150
"""Statements that a connection keeps prepared; each costs the server some 50 KiB."""
SERVER_FAILED = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.IdleInTransactionSessionTimeout,
)
"""The driver's errors where a server is down, goes down, or accepts no writes."""


class NoResult(psycopg.OperationalError):
    """A statement was sent and has no result, so nothing is known of its rows."""


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
    """A connection of the driver that runs several statements at once.

    CUT-1  A connection whose call was cut off, by a cancel or a deadline, is closed at once. The
           driver may have left such a connection in pipeline mode, where a statement has no result.
    CUT-2  A statement without a result raises NoResult; an empty result is one.
    -      A connection that refused a write is closed, because after a failover the pool may hold
           sessions that stay read-only while the server takes the writes of new ones.
    """

    async def run_all(self, statements: Sequence[Statement]) -> list[StatementResult]:
        """Run statements in order, in one round trip; each sees the effects of those before it.

        Raises psycopg.Error for the first that failed; those after it were not run then. Raises
        NoResult where a statement has no result.
        """
        with self._closed_if_cut():
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
        with self._closed_if_cut():
            async with self.lock:
                self.pgconn.send_query(b"rollback")
                await self.wait(generators.execute(self.pgconn))

    @contextmanager
    def _closed_if_cut(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            told = isinstance(error, Exception) and not isinstance(error, NoResult)
            refused = isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
            active = self._in_pipeline() or self._status() == TransactionStatus.ACTIVE
            if not told or refused or active:
                self.cut()
            raise

    def cut(self) -> None:
        """Close the connection at once, without a word to the server."""
        self.pgconn.finish()

    def is_at_rest(self) -> bool:
        """Return whether the next call finds the connection as a new one: open, in no transaction,
        no pipeline and no other call. The server is not asked."""
        at_rest = self._status() == TransactionStatus.IDLE and not self._in_pipeline()
        return at_rest and not self.lock.locked()

    def _status(self) -> int:
        return self.pgconn.transaction_status

    def _in_pipeline(self) -> bool:
        return self._pipeline is not None or self.pgconn.pipeline_status != PipelineStatus.OFF

    def check_open(self) -> None:
        """Raise OperationalError where the server has closed the connection, so that no statement
        is sent that would not be carried out."""
        look = select.poll()
        look.register(self.pgconn.socket, select.POLLIN)
        while look.poll(0):
            self.pgconn.consume_input()


async def _read(cursor: psycopg.AsyncCursor[dict[str, Any]]) -> StatementResult:
    if cursor.pgresult is None:
        raise NoResult("the database gave no result of a statement")
    rows = [] if cursor.description is None else await cursor.fetchall()
    return StatementResult(rows, max(cursor.rowcount, 0))


def is_lost(error: psycopg.Error) -> bool:
    """Return whether an error means that the connection is gone, so that another connection may
    succeed."""
    state = error.sqlstate
    closed = isinstance(error, psycopg.InterfaceError) or state is None
    return closed or str(state)[:3] in ("57P", "25P", "08")
