"""A second look, on a connection of its own, at what a first look did not find.

The answer is one row that is never empty: beside what was found it holds the time and the lead,
which every database of Holdfast has. So an answer of nothing is no answer.
"""

import asyncio
from typing import Literal

import msgspec
import psycopg

from holdfast.core.ids import TaskKey
from holdfast.errors import Unavailable
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.pipeline import Connection, Statement
from holdfast.store.postgres.connection.pool import cut_after
from holdfast.store.postgres.connection.queries import QUERIES
from holdfast.store.postgres.connection.session import Session

LOOK_SECONDS = 5.0


class HeldTask(msgspec.Struct, frozen=True):
    """A task that may hold its lease: on this host in this incarnation, or, where both are None, on
    any."""

    key: TaskKey
    host_id: str | None = None
    incarnation: str | None = None


class SecretHash(msgspec.Struct, frozen=True):
    """The hash of a secret of one kind. One of another kind, as a user's token where a host's key
    is asked for, is none of this kind."""

    kind: Literal["host", "token", "sign_in"]
    hash: bytes


class Sought(msgspec.Struct, frozen=True, kw_only=True):
    """Things of the store, by what names them. hashes: those of secrets that are in force."""

    hosts: frozenset[str] = frozenset()
    tasks: frozenset[HeldTask] = frozenset()
    hashes: frozenset[SecretHash] = frozenset()
    jobs: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()

    def __or__(self, other: "Sought") -> "Sought":
        return Sought(**{f: getattr(self, f) | getattr(other, f) for f in self.__struct_fields__})

    def __and__(self, other: "Sought") -> "Sought":
        return Sought(**{f: getattr(self, f) & getattr(other, f) for f in self.__struct_fields__})


NOTHING = Sought()


class PostgresWitness:
    """The connection of second looks. The connection is made at the first second look, and no other
    call ever runs on it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._conn: Connection | None = None
        self._lock = asyncio.Lock()

    async def look(self, sought: Sought, *, now: Now = None) -> Sought:
        """Return what is there of `sought`. Raises Unavailable where no answer came."""
        async with self._lock:
            kept = self._conn is not None
            try:
                return await self._look(sought, now)
            except (psycopg.Error, Unavailable) as error:
                await self.close()
                if not kept:
                    raise Unavailable(f"the database gave no second answer: {error}") from error
            except BaseException:
                await self.close()
                raise
            try:  # once more, because the server may have closed a connection that rested
                return await self._look(sought, now)
            except psycopg.Error as error:
                await self.close()
                raise Unavailable(f"the database gave no second answer: {error}") from error

    async def _look(self, sought: Sought, now: Now) -> Sought:
        if self._conn is None:
            self._conn = await self._session.connect()
        tasks, hashes = list(sought.tasks), list(sought.hashes)
        params = {
            "hosts": list(sought.hosts),
            "jobs": [task.key.job_id for task in tasks],
            "ranks": [task.key.rank for task in tasks],
            "epochs": [task.key.epoch for task in tasks],
            "task_hosts": [task.host_id for task in tasks],
            "incarnations": [task.incarnation for task in tasks],
            "hashes": [each.hash for each in hashes],
            "kinds": [each.kind for each in hashes],
            "known_jobs": list(sought.jobs),
            "known_runs": list(sought.runs),
            "now": now,
        }
        with cut_after(self._conn, LOOK_SECONDS):
            (found,) = await self._conn.run_all((Statement(QUERIES["look_again"], params),))
        if len(found.rows) != 1 or found.rows[0]["now"] is None or found.rows[0]["lead"] is None:
            raise Unavailable(
                "the row of the lead, which every database of Holdfast has, is absent"
            )
        row = found.rows[0]
        return Sought(
            hosts=frozenset(row["hosts"]),
            tasks=frozenset(tasks[n - 1] for n in row["tasks"]),
            hashes=frozenset(hashes[n - 1] for n in row["hashes"]),
            jobs=frozenset(row["jobs"]),
            runs=frozenset(row["runs"]),
        )

    async def close(self) -> None:
        """Close the connection. The next look makes another."""
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.close()
