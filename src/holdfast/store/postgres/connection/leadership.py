"""Leadership and hints in PostgreSQL, each on a connection of its own.

A hint is sent outside any transaction and may be lost, so loops poll as well.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from holdfast.errors import Unavailable
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.pipeline import Connection, Statement
from holdfast.store.postgres.connection.pool import cut_after
from holdfast.store.postgres.connection.queries import QUERIES
from holdfast.store.postgres.connection.session import LEAD, Session

log = logging.getLogger("holdfast.store")
CHANNEL = "holdfast_hints"
_NOTIFY = b"select pg_notify(%(to)s, p) from unnest(%(words)s::text[]) p"
_GREETING, _GREETING_BACK = "greeting", "greeting_back"
NO_LEAD = -1  # a transaction tied to this number may write nothing
HINT_GAP_SECONDS = 0.02
CONFIRM_SECONDS = 2.0
BACK_OFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


LEAD_SECONDS = 6.0
"""How long a lead lasts without a renewal. With the two seconds between two tries of a standby, and
the time of a frozen leader's open transaction, another replica leads within 10 s."""


class DueLook(NamedTuple):
    """The answer of the leader's look. revision: that of the settings. due: the loops that may have
    work, by name."""

    revision: int
    due: Collection[str]


class HintHub:
    """A distributor of hints' topics to the listeners of this process."""

    def __init__(self) -> None:
        self._listeners: dict[int, tuple[dict[str, None], asyncio.Event]] = {}
        self._next = 0

    def deliver(self, topic: str) -> None:
        """Give a topic to every listener of this process. A listener in whose queue the topic waits
        already gets it only once."""
        for topics, event in self._listeners.values():
            topics[topic] = None
            event.set()

    async def listen(self) -> AsyncIterator[str]:
        """Yield topics for ever."""
        topics: dict[str, None] = {}
        event = asyncio.Event()
        number, self._next = self._next, self._next + 1
        self._listeners[number] = (topics, event)
        try:
            while True:
                await event.wait()
                event.clear()
                while topics:
                    topic = next(iter(topics))
                    del topics[topic]
                    yield topic
        finally:
            del self._listeners[number]


class PostgresLeadership:
    """One replica leads; all of them hint to each other.

    LEAD-3  The lead has an expiry and a number. A write of the leader's loops is committed only
            while its number is the newest and has not run out, so a leader that was frozen changes
            nothing when it thaws.

    A hint is the news that a topic may have work: "admit", "retries", "ended", "drain", "members",
    "due", "events", "logs", "log_reads", "host:<id>". A hint may be lost, so readers must poll as well.

    HINT-1  A replica that is alone sends no hints to the database. Each replica greets the others
            as soon as it listens, and is greeted back by those that hear it, so of two replicas
            that listen each knows of the other.
    """

    def __init__(self, session: Session, lead_seconds: float = LEAD_SECONDS) -> None:
        self.session = session
        self._lead_seconds = lead_seconds
        self._number: int | None = None
        self._hub = HintHub()
        self._sender_id = secrets.token_hex(6)
        self._pending: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._others = False  # whether another replica was ever heard
        self._tasks: list[asyncio.Task[None]] = []
        self._lead: Connection | None = None
        self._lead_lock = asyncio.Lock()

    @property
    def holder(self) -> str:
        """Return the name of this replica in the lead's row."""
        return self._sender_id

    def start(self) -> None:
        """Keep the two connections for hints open from now on."""
        self._tasks = [
            asyncio.create_task(self._keep(self._send), name="hints-send"),
            asyncio.create_task(self._keep(self._receive), name="hints-receive"),
        ]

    async def stop(self) -> None:
        """Close every connection that the leadership holds. A second call does no harm."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self.stop_leading()

    async def try_lead(self, *, now: Now = None) -> bool:
        """Acquire or renew the lead, which runs out after `LEAD_SECONDS`. Return False where
        another replica leads, or the lead was lost."""
        clock = self.session.clock
        now = clock() if now is None and clock is not None else now
        async with self._lead_lock:
            if self._number is not None:
                number = await self._ask("renew_lead", {"number": self._number, "now": now})
                if number is None:
                    await self._drop_lead()
                return number is not None
            self._number = await self._ask("take_lead", {"holder": self._sender_id, "now": now})
            if self._number is None:
                await self._drop_lead()
            return self._number is not None

    async def _ask(self, name: str, params: dict[str, Any]) -> int | None:
        """Run one of the lead's statements and return the number of this replica's lead after it.

        The statement runs on a connection of its own. Where that one breaks, the lead counts as
        lost even if its row still stands, because the server may have crashed and LEASE-4 must
        count anew.
        """
        try:
            if self._lead is None:
                self._lead = await self.session.connect()
            with cut_after(self._lead, CONFIRM_SECONDS):
                ask = Statement(QUERIES[name], {**params, "seconds": self._lead_seconds})
                (found,) = await self._lead.run_all((ask,))
        except (psycopg.Error, Unavailable):
            return None
        return int(found.rows[0]["number"]) if found.rows else None

    @contextmanager
    def fenced(self) -> Iterator[None]:
        """Return a context that ties all writes in it, and in tasks made in it, to the present lead
        (LEAD-3): once that lead is over, such a write raises Stale and changes nothing."""
        token = LEAD.set(NO_LEAD if self._number is None else self._number)
        try:
            yield
        finally:
            LEAD.reset(token)

    async def _drop_lead(self) -> None:
        conn, self._lead, self._number = self._lead, None, None
        if conn is not None:
            await conn.close()

    async def stop_leading(self) -> None:
        """Release the lead, if this replica has it."""
        async with self._lead_lock:
            if self._number is not None:
                await self._ask("give_lead_back", {"number": self._number})
            await self._drop_lead()

    async def look(
        self,
        asked: Collection[str],
        *,
        silent_seconds: float,
        keep_seconds: float,
        ahead: bool,
        now: Now = None,
    ) -> DueLook:
        """Ask which of the loops `asked` may have work, by one statement. silent_seconds: the
        silence after which a host counts as dead. keep_seconds: how long outputs are kept. ahead:
        executors are kept before there are calls."""
        given = {"silent_seconds": silent_seconds, "keep_seconds": keep_seconds, "ahead": ahead}
        (row,) = await self.session.rows("look", asked=list(asked), now=now, **given)
        return DueLook(**row)

    def hint(self, topic: str) -> None:
        """Send every replica a hint about `topic`, soon and at most once per 20 ms per topic."""
        self._hub.deliver(topic)
        if self._others:
            self._send_soon(topic)

    def _send_soon(self, topic: str) -> None:
        self._pending[topic] = None
        self._wake.set()

    def hints(self) -> AsyncIterator[str]:
        """Yield hints from every replica, this one included, for ever."""
        return self._hub.listen()

    async def _keep(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        """Run one of the two hint connections for ever, with a longer pause after each failure in a
        row."""
        failures = 0
        while True:
            try:
                conn = await self.session.connect()
                try:
                    failures = 0
                    await serve(conn)
                finally:
                    await conn.close()
            except (psycopg.Error, Unavailable, OSError):
                failures += 1
            except Exception:
                log.exception("a connection for hints failed; it is made again")
                failures += 1
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError  # a clean-up below failed and lost the cancel (LOOP-3)
            await asyncio.sleep(BACK_OFF_SECONDS[min(failures, len(BACK_OFF_SECONDS) - 1)])

    async def _send(self, conn: Connection) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            topics, self._pending = list(self._pending), {}
            payloads = [
                f"{self._sender_id} {topic}"
                for topic in topics
                if len(topic) < 4000 and "\x00" not in topic
            ]
            try:
                with cut_after(conn, self.session.call_seconds):
                    await conn.run_all((Statement(_NOTIFY, {"to": CHANNEL, "words": payloads}),))
            except BaseException:
                for topic in topics:  # a lost greeting would leave two replicas deaf to each other
                    self._send_soon(topic)
                raise
            await asyncio.sleep(HINT_GAP_SECONDS)

    async def _receive(self, conn: Connection) -> None:
        await conn.execute(f"listen {CHANNEL}".encode())
        self._send_soon(_GREETING)
        async for notify in conn.notifies():
            sender, _, topic = notify.payload.partition(" ")
            if sender == self._sender_id:
                continue
            self._others = True
            if topic == _GREETING:
                self._send_soon(_GREETING_BACK)
            elif topic != _GREETING_BACK:
                self._hub.deliver(topic)
