"""Leadership and hints in PostgreSQL, each on a connection of its own.

A hint is sent outside any transaction and may be lost, so loops poll as well.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from holdfast.errors import Unavailable
from holdfast.store.port.clock import Now
from holdfast.store.port.leadership import LEAD_SECONDS, HintHub
from holdfast.store.postgres.connection.pipeline import Connection, Statement
from holdfast.store.postgres.connection.pool import cut_after
from holdfast.store.postgres.connection.queries import QUERIES
from holdfast.store.postgres.connection.session import LEAD, Session

log = logging.getLogger("holdfast.store")
CHANNEL = "holdfast_hints"
_NOTIFY = b"select pg_notify(%(to)s, p) from unnest(%(words)s::text[]) p"
NO_LEAD = -1  # a transaction tied to this number may write nothing
HINT_GAP_SECONDS = 0.02
CONFIRM_SECONDS = 2.0
BACK_OFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class PostgresLeadership:
    """`LeadershipStore` on PostgreSQL."""

    def __init__(self, session: Session, lead_seconds: float = LEAD_SECONDS) -> None:
        self.session = session
        self._lead_seconds = lead_seconds
        self._number: int | None = None
        self._hub = HintHub()
        self._sender_id = secrets.token_hex(6)
        self._pending: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._lead: Connection | None = None
        self._lead_lock = asyncio.Lock()

    def start(self) -> None:
        """Keep the two connections for hints from now on."""
        self._tasks = [
            asyncio.create_task(self._keep(self._send), name="hints-send"),
            asyncio.create_task(self._keep(self._receive), name="hints-receive"),
        ]

    async def stop(self) -> None:
        """Close every connection of its own. Safe to call twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self.stop_leading()

    async def try_lead(self, *, now: Now = None) -> bool:
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
                cursor = await self._lead.execute(
                    QUERIES[name], {**params, "seconds": self._lead_seconds}
                )
                row = await cursor.fetchone() if cursor.description else None
        except (psycopg.Error, Unavailable):
            return None
        return None if row is None else int(row["number"])

    @contextmanager
    def fenced(self) -> Iterator[None]:
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
        async with self._lead_lock:
            if self._number is not None:
                await self._ask("give_lead_back", {"number": self._number})
            await self._drop_lead()

    def hint(self, topic: str) -> None:
        self._hub.deliver(topic)
        self._pending[topic] = None
        self._wake.set()

    def hints(self) -> AsyncIterator[str]:
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
            with cut_after(conn, self.session.call_seconds):
                await conn.run_all((Statement(_NOTIFY, {"to": CHANNEL, "words": payloads}),))
            await asyncio.sleep(HINT_GAP_SECONDS)

    async def _receive(self, conn: Connection) -> None:
        await conn.execute(f"listen {CHANNEL}".encode())
        async for notify in conn.notifies():
            sender, _, topic = notify.payload.partition(" ")
            if sender != self._sender_id:
                self._hub.deliver(topic)
