"""Connections to PostgreSQL: one pool, one way to run a transaction, one way to fail.

Every failure to reach the server becomes `Unavailable`. A transaction that failed before its COMMIT
was sent changed nothing, and is tried again a few times on another connection, because the server
may have restarted, or have closed a connection of a process that got no CPU for long. Where the
failure came during COMMIT, it is not known whether the transaction was committed. This is
Unavailable too, so every method of the store must allow a repeat.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from psycopg_pool import PoolClosed, PoolTimeout

from holdfast.errors import Stale, Unavailable, ValidationError
from holdfast.moves.values import DrainListener, DrainNews, drop_drain_news
from holdfast.store.postgres.connection.arrays import ColumnDumper
from holdfast.store.postgres.connection.pipeline import (
    MAX_PREPARED,
    SERVER_FAILED,
    Connection,
    Statement,
    StatementResult,
    is_lost,
)
from holdfast.store.postgres.connection.pool import WarmPool
from holdfast.store.postgres.connection.queries import QUERIES
from holdfast.store.postgres.connection.session_settings import (
    KEEP_PLANS_FOR_SESSION,
    write_session_settings,
)

T = TypeVar("T")
K = TypeVar("K")
Rows = list[dict[str, Any]]
Step = tuple[str, Mapping[str, Any] | None]
Clock = Callable[[], datetime]

CONNECT_SECONDS = 5
CALL_SECONDS = 30.0
POOL_WAIT_SECONDS = 3.0
CONFLICT_TRIES = 8
INTRANS, INERROR = TransactionStatus.INTRANS, TransactionStatus.INERROR
_PLANNED_ANEW = frozenset(
    ("list_job_ids", "read_events", "tail_events", "read_candidates_in_share")
)
"""Queries that are planned anew each time, because their best plan depends on which filters are
given or on the present number of jobs."""
_BEGIN = (b"begin",)
_ONE_MOMENT = b"set transaction isolation level repeatable read, read only"
_COMMIT = b"commit"
_IN_BINARY = frozenset(("read_log", "read_log_spans"))
"""Queries whose rows hold many bytes."""
_encoder = msgspec.json.Encoder()
_CHECK_LEAD = b"select check_lead(%(lead)s::bigint, %(now)s::timestamptz)"
LEAD: ContextVar[int | None] = ContextVar("lead", default=None)
"""The number of the lead to which transactions of this asyncio task are tied (LEAD-3), or None."""
# Renewals and heartbeats only. A commit that a crash of the server loses makes the controller's
# lease shorter than the agent believes it to be. That is safe: the crash ends every session, the
# leader's lock among them, so the next leadership begins after it, and nothing lapses before
# leading_since + TTL (LEASE-4), which is later than the TTL the agent counts from the start of the
# sync whose renewal was lost.
_RELAXED = b"set local synchronous_commit = off"
# Statements over arrays are otherwise planned anew at every call, because PostgreSQL overestimates
# the cost of a plan for an array of unknown length; planning took as long as running them.
KEEP_PLANS = QUERIES["keep_plans"]
_BOTH = KEEP_PLANS + b", set_config('synchronous_commit', 'off', true)"


def to_json(value: object) -> str:
    """Return `value` as JSON for a jsonb column, which refuses NUL: it becomes U+FFFD."""
    return _replace_nul(_encoder.encode(value)).decode()


def to_json_each(values: Sequence[object]) -> list[str]:
    """Return the JSON of each value, as `to_json` would write it."""
    return _replace_nul(_encoder.encode_lines(values)).decode().split("\n")[:-1]


def _replace_nul(raw: bytes) -> bytes:
    return raw.replace(b"\\u0000", b"\\ufffd") if b"\\u0000" in raw else raw


class Tx:
    """One transaction, or one statement on its own.

    begin: the statements that open the transaction, sent together with its first statement to save
    a round trip. committing: a function to call before COMMIT is sent. clock: the time of
    statements that are given none; None for the database's clock (STORE-5).
    """

    def __init__(
        self,
        conn: Connection,
        begin: tuple[bytes, ...] = (),
        committing: Callable[[], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.conn = conn
        self._clock = clock
        self.relaxed = bool({_RELAXED, _BOTH}.intersection(begin))
        """A crash of the server may lose the transaction, unless `commit_for_good` is run in it."""
        self._begin = begin
        self.drain_news: list[DrainNews] = []  # for listeners, after the commit
        self._committing = committing

    def see_one_moment(self) -> None:
        """Let all statements of the transaction see the database as it is at the first statement;
        none of them may write."""
        self._begin = (*self._begin, _ONE_MOMENT)

    async def many(self, *steps: Step) -> list[Rows]:
        """Run named queries in order, in one round trip; each query sees the effects of the queries
        before it."""
        return await self._pipe(steps, ())

    async def last(self, *steps: Step) -> list[Rows]:
        """Run `many` and the transaction's COMMIT in one round trip, so that the transaction's
        locks are released before the rows are read.

        Where one query fails, nothing is committed. No further statement may follow.
        """
        if self._committing is None:
            raise RuntimeError("there is no transaction to end")
        self.conn.check_open()
        self._committing()
        return await self._pipe(steps, _commit_words(self._clock))

    async def _pipe(self, steps: Sequence[Step], end: tuple[Statement, ...]) -> list[Rows]:
        before = len(self._begin)
        found = await self._run([self._ask(step) for step in steps], end)
        return [one.rows for one in found[before : len(found) - len(end)]]

    async def _run(
        self, statements: Sequence[Statement], end: tuple[Statement, ...] = ()
    ) -> list[StatementResult]:
        """Run statements, after the statements that open the transaction if these were not sent
        yet."""
        begin, self._begin = self._begin, ()
        return await self.conn.run_all((*map(Statement, begin), *statements, *end))

    async def _execute(self, name: str, params: Mapping[str, Any]) -> StatementResult:
        return (await self._run([self._ask((name, params))]))[-1]

    def _ask(self, step: Step) -> Statement:
        name, params = step
        if self._clock is not None and params and params.get("now", self) is None:
            params = {**params, "now": self._clock()}
        return Statement(QUERIES[name], params, name not in _PLANNED_ANEW, name in _IN_BINARY)

    async def rows(self, name: str, /, **params: Any) -> Rows:
        """Run the named query and return its rows as dicts."""
        return (await self._execute(name, params)).rows

    async def list_of(self, kind: type[K], name: str, /, **params: Any) -> list[K]:
        """Run the named query and return its rows as records."""
        return [msgspec.convert(row, kind) for row in await self.rows(name, **params)]

    async def find(self, kind: type[K], name: str, /, **params: Any) -> K | None:
        """Run the named query and return its first row as a record, None where there is none."""
        row = await self.one(name, **params)
        return None if row is None else msgspec.convert(row, kind)

    async def one(self, name: str, /, **params: Any) -> dict[str, Any] | None:
        """Run the named query and return its first row, or None."""
        rows = (await self._execute(name, params)).rows
        return rows[0] if rows else None

    async def value(self, name: str, /, **params: Any) -> Any:
        """Run the named query and return the first column of its first row, or None."""
        row = await self.one(name, **params)
        return None if row is None else next(iter(row.values()))

    async def run(self, name: str, /, **params: Any) -> int:
        """Run a statement that returns no rows; return the number of rows that it changed."""
        return (await self._execute(name, params)).count

    async def now(self, now: datetime | None) -> datetime:
        """Return `now`, or the time of the database's clock (STORE-5)."""
        if now is not None:
            return now
        found: datetime = await self.value("read_now", now=None)
        return found


WarmUp = Callable[[Tx], Awaitable[object]]


class Session:
    """Two pools of connections, and the ways to run statements and transactions on them.

    The transactions of the hot path (`transact_hot`) have a pool of their own, whose connections
    keep plans. So none of them begins with a statement of settings, and none waits behind a long
    read.

    max_connections: of both pools together. prepare_threshold: as in psycopg: 0 prepares a
    statement at its first use on a connection; None never does, for a pooler in transaction mode.
    call_seconds: a call that takes longer is cut off at its socket, so a frozen server cannot
    freeze the controller. clock: the time in place of the database's clock.
    """

    def __init__(
        self,
        dsn: str,
        *,
        max_connections: int = 10,
        prepare_threshold: int | None = 0,
        call_seconds: float = CALL_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self.dsn = dsn
        self.clock = clock
        self.call_seconds = call_seconds
        self.max_connections = max_connections
        self._prepare_threshold = prepare_threshold
        self._warm_ups: list[WarmUp] = []
        self._pool: WarmPool | None = None
        self._hot: WarmPool | None = None
        self._spare: Connection | None = None
        self.tell_drains: DrainListener = drop_drain_news
        """The function that gets news of drains after the commit of the transaction that began
        them."""

    def warm_up_with(self, work: WarmUp) -> None:
        """Run statements that change nothing on each new connection of the hot path, because a new
        server process needs some 10 ms to plan them."""
        self._warm_ups.append(work)

    async def open(self) -> None:
        """Connect once to learn whether the server can be reached, then fill the pools. The next
        `connect` gets that first connection. Raises Unavailable."""
        self._spare = await self.connect()
        hot = max(2, self.max_connections * 2 // 5)  # a batch of syncs, and submissions beside it
        self._pool = self._make_pool("holdfast", max(1, self.max_connections - hot), _configure)
        self._hot = self._make_pool("holdfast-hot", hot, self._prepare_hot)
        await asyncio.gather(self._pool.open(), self._hot.open())

    def _make_pool(
        self, name: str, size: int, configure: Callable[[Connection], Awaitable[None]]
    ) -> WarmPool:
        return WarmPool(
            self.dsn,
            kwargs=self._arguments(),
            min_size=1,
            max_size=size,
            open=False,
            configure=configure,
            timeout=POOL_WAIT_SECONDS,
            reconnect_timeout=2.0,
            name=name,
        )

    async def close(self) -> None:
        """Close every pooled connection, and the spare one. A second call does no harm."""
        spare, self._spare = self._spare, None
        if spare is not None:
            await spare.close()
        pools, self._pool, self._hot = (self._pool, self._hot), None, None
        for pool in pools:
            if pool is not None:
                await pool.close(timeout=2.0)

    async def _prepare_hot(self, conn: Connection) -> None:
        await _configure(conn)
        await conn.execute(KEEP_PLANS_FOR_SESSION, prepare=False)
        for work in self._warm_ups:
            with suppress(psycopg.Error):  # the schema may be another one, which `open` tells
                await work(Tx(conn))

    def _arguments(self) -> dict[str, Any]:
        return {
            "autocommit": True,
            "prepare_threshold": self._prepare_threshold,
            "row_factory": dict_row,
            "connect_timeout": CONNECT_SECONDS,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        }

    async def connect(self) -> Connection:
        """Return a connection outside the pool. Raises Unavailable."""
        spare, self._spare = self._spare, None
        if spare is not None:
            return spare
        try:
            async with asyncio.timeout(CONNECT_SECONDS + 1):
                conn = await Connection.connect(self.dsn, **self._arguments())
                await _configure(conn)
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise Unavailable(f"the database cannot be reached: {_words(error)}") from error
        return conn

    async def transact(
        self,
        work: Callable[[Tx], Awaitable[T]],
        *,
        relaxed: bool = False,
        keep_plans: bool = False,
        seconds: float | None = None,
    ) -> T:
        """Run `work` in one transaction, committed when it returns.

        `work` may run more than once; an earlier run that failed has changed nothing.
        relaxed: a crash of the server may lose the transaction. keep_plans: the server keeps one
        plan of each statement for all parameters, so its statements must never be sent without
        this flag. seconds: longest time, in place of `call_seconds`.

        Raises:
            Unavailable: the server cannot be reached, or it is not known whether it committed.
            ValidationError: a value cannot be stored.
        """
        settings = {(True, False): _RELAXED, (False, True): KEEP_PLANS, (True, True): _BOTH}.get(
            (relaxed, keep_plans)
        )
        begin = _BEGIN if settings is None else (*_BEGIN, settings)
        return await self._attempt(
            lambda conn, mark: self._transact_once(conn, work, begin, mark), seconds=seconds
        )

    async def transact_hot(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        """Run `work` as `transact` does with `keep_plans`, on a connection that keeps plans. A
        pooler in transaction mode keeps no settings, so behind one the transaction sets them."""
        if self._prepare_threshold is None:
            return await self.transact(work, keep_plans=True)
        return await self._attempt(
            lambda conn, mark: self._transact_once(conn, work, _BEGIN, mark), hot=True
        )

    async def _transact_once(
        self,
        conn: Connection,
        work: Callable[[Tx], Awaitable[T]],
        begin: tuple[bytes, ...],
        mark: Callable[[], None],
    ) -> T:
        tx = Tx(conn, begin, mark, self.clock)
        try:
            result = await work(tx)
        except BaseException:
            if not conn.closed and conn.info.transaction_status in (INTRANS, INERROR):
                # A connection that is too broken for a rollback has rolled back already, and its
                # error must not hide the one that led here.
                with suppress(psycopg.Error):
                    await conn.roll_back()
            raise
        # Otherwise the work sent no statement, or sent its COMMIT with its last statements.
        if conn.info.transaction_status == INTRANS:
            conn.check_open()
            mark()
            await conn.run_all(_commit_words(self.clock))
        if tx.drain_news:
            self.tell_drains(tx.drain_news)
        return result

    async def single(
        self, work: Callable[[Tx], Awaitable[T]], *, seconds: float | None = None
    ) -> T:
        """Run `work` without BEGIN and COMMIT: one statement, or reads without a common
        snapshot."""
        return await self._attempt(partial(self._read_once, work), seconds=seconds)

    async def single_hot(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        """Run reads as `single` does, on a connection that keeps plans (`transact_hot`)."""
        if self._prepare_threshold is None:
            return await self.transact(work, keep_plans=True)
        return await self._attempt(partial(self._read_once, work), hot=True)

    async def _read_once(
        self, work: Callable[[Tx], Awaitable[T]], conn: Connection, mark: Callable[[], None]
    ) -> T:
        return await work(Tx(conn, clock=self.clock))

    async def rows(self, name: str, /, **params: Any) -> Rows:
        """Run one named query on its own."""
        return await self.single(lambda tx: tx.rows(name, **params))

    async def list_of(self, kind: type[K], name: str, /, **params: Any) -> list[K]:
        """Run one named query on its own and return its rows as records."""
        return await self.single(lambda tx: tx.list_of(kind, name, **params))

    async def _attempt(
        self,
        once: Callable[[Connection, Callable[[], None]], Awaitable[T]],
        *,
        seconds: float | None = None,
        hot: bool = False,
    ) -> T:
        committing = False

        def mark() -> None:
            nonlocal committing
            committing = True

        loop = asyncio.get_running_loop()
        limit = self.call_seconds if seconds is None else seconds
        deadline = loop.time() + limit
        conflicts = broken = 0
        cancels = _count_cancels()
        while True:
            committing = False
            try:
                async with self._lend(deadline - loop.time(), hot=hot) as conn:
                    return await once(conn, mark)
            except (pg.SerializationFailure, pg.DeadlockDetected) as error:
                conflicts += 1
                _check_conflicts(conflicts, error)
                await asyncio.sleep(random.uniform(0, 0.005 * 2**conflicts))
            except PoolTimeout as error:
                if _count_cancels() > cancels:  # the cancel was lost in the wait for a connection
                    raise asyncio.CancelledError from error
                raise Unavailable(
                    "the database cannot be reached: no connection came up in time"
                ) from error
            except pg.RaiseException as error:  # `check_lead`, the one function that raises
                text = "another replica leads now; nothing was changed"
                raise Stale(text, code="lead_lost") from error
            except PoolClosed as error:
                raise Unavailable("the store is closed") from error
            except SERVER_FAILED as error:
                if _count_cancels() > cancels:  # the cancel was lost in a clean-up that failed
                    raise asyncio.CancelledError from error
                broken += 1
                over = broken > self.max_connections + 1 or loop.time() > deadline
                if committing or over or not is_lost(error):
                    fate = " while it committed, so whether it did is unknown" if committing else ""
                    raise Unavailable(f"the database failed{fate}: {_words(error)}") from error
            except (psycopg.DataError, UnicodeEncodeError) as error:
                raise ValidationError(
                    f"the database cannot store a value that was given: {_words(error)}"
                ) from error

    def _lend(self, seconds: float, *, hot: bool) -> AbstractAsyncContextManager[Connection]:
        pool = self._hot if hot else self._pool
        if pool is None:
            raise Unavailable("the store is not open")
        return pool.lend(max(0.05, min(seconds, POOL_WAIT_SECONDS)), seconds)


def _commit_words(clock: Clock | None) -> tuple[Statement, ...]:
    lead, commit = LEAD.get(), Statement(_COMMIT)
    if lead is None:
        return (commit,)
    now = None if clock is None else clock()
    return (Statement(_CHECK_LEAD, {"lead": lead, "now": now}), commit)


def _check_conflicts(count: int, error: Exception) -> None:
    if count >= CONFLICT_TRIES:
        raise Unavailable(f"the database refused {count} times: {_words(error)}") from error


def _count_cancels() -> int:
    """Return how often the present asyncio task was cancelled."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


async def _configure(conn: Connection) -> None:
    set_json_loads(msgspec.json.decode, conn)
    conn.adapters.register_dumper(list, ColumnDumper)
    conn.prepared_max = MAX_PREPARED
    await conn.execute(write_session_settings(conn.info.server_version), prepare=False)


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
