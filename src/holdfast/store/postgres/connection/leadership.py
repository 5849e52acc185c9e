"""Leadership and hints in PostgreSQL, each on a connection of its own.

A hint is only a hint: it is sent outside any transaction, may be lost, and a loop that never got
one still polls.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import psycopg

from holdfast.errors import Unavailable
from holdfast.store.port.leadership import HintHub
from holdfast.store.postgres.connection.session import Connection, Session, cut_after

log = logging.getLogger("holdfast.store")
CHANNEL = "holdfast_hints"
LEAD_KEY = 0x686F6C64_6C656164  # "hold" "lead"
HINT_GAP_SECONDS = 0.02
CONFIRM_SECONDS = 2.0
BACK_OFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class PostgresLeadership:
    """`LeadershipStore` on PostgreSQL."""

    def __init__(self, session: Session) -> None:
        self.session = session
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

    async def try_lead(self) -> bool:
        async with self._lead_lock:
            if self._lead is not None:
                if await self._confirm_lead(self._lead):
                    return True
                await self._drop_lead()
                return False
            try:
                conn = await self.session.connect()
            except Unavailable:
                return False
            self._lead = conn
            try:
                with cut_after(conn, CONFIRM_SECONDS):
                    cursor = await conn.execute(
                        "select pg_try_advisory_lock(%s) as held", (LEAD_KEY,)
                    )
                    row = await cursor.fetchone()
            except psycopg.Error:
                row = None
            if row is None or not row["held"]:
                await self._drop_lead()
                return False
            return True

    async def _confirm_lead(self, conn: Connection) -> bool:
        """The lock lives as long as the session: one that answers still holds it."""
        try:
            with cut_after(conn, CONFIRM_SECONDS):
                await conn.execute("select 1")
        except psycopg.Error:
            return False
        return True

    async def _drop_lead(self) -> None:
        conn, self._lead = self._lead, None
        if conn is not None:
            await conn.close()

    async def stop_leading(self) -> None:
        async with self._lead_lock:
            if self._lead is not None:
                try:
                    with cut_after(self._lead, CONFIRM_SECONDS):
                        await self._lead.execute("select pg_advisory_unlock(%s)", (LEAD_KEY,))
                except psycopg.Error:
                    pass  # the session is gone, and the lock with it
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
                raise asyncio.CancelledError  # the word was lost below, in a clean-up that failed (LOOP-3)
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
                await conn.execute(
                    "select pg_notify(%s, p) from unnest(%s::text[]) p", (CHANNEL, payloads)
                )
            await asyncio.sleep(HINT_GAP_SECONDS)

    async def _receive(self, conn: Connection) -> None:
        await conn.execute(f"listen {CHANNEL}".encode())
        async for notify in conn.notifies():
            sender, _, topic = notify.payload.partition(" ")
            if sender != self._sender_id:
                self._hub.deliver(topic)
