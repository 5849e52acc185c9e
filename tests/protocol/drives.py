"""The stores that the world runs on, and how a step of each is driven to its end: the model in memory,
and the store that ships, on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import psycopg

from holdfast.core.records import AttemptRecord, EventRecord, HostRecord, JobRecord, TaskRecord
from holdfast.core.settings.resolve import Value
from holdfast.moves.events import parse_event_id
from holdfast.moves.values import JobFilter
from holdfast.store.postgres.events import make_event
from holdfast.store.postgres.store import PostgresStore
from tests.model.store import MemoryStore
from tests.store.pg_fixture import PgServer

T = TypeVar("T")
Clock = Callable[[], datetime]
Environment = Mapping[str, Value]
EVERY_JOB = JobFilter(limit=1000)
LOOKED_FOR = (
    "leases", "reservations", "host_drains", "due", "dead_hosts", "drains", "members", "admit",
)  # fmt: skip
"""The loops of the world."""
_STAMP = """
    select pg_snapshot_xmin(now) = pg_snapshot_xmax(now), pg_snapshot_xmax(now)::text,
           array(select id from jobs order by id)
    from pg_current_snapshot() as now
"""


class Look(NamedTuple):
    """Everything that the promises are about, as a store's readers give it. `news`: the events since
    the one that was named."""

    jobs: list[JobRecord]
    tasks: dict[str, list[TaskRecord]]
    attempts: dict[str, list[AttemptRecord]]
    hosts: list[HostRecord]
    news: list[EventRecord]


class Drive(Protocol):
    """A fresh store without a job, which belongs to one world."""

    store: Any

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        """Finish a step of the store."""

    def list_jobs(self) -> list[JobRecord]:
        """Return every job."""

    def count_busy(self) -> tuple[int, int]:
        """Return how many CPU slots and GPUs the live tasks hold."""

    def find_due(self, now: datetime) -> Collection[str]:
        """Return the loops that the leader's look names."""

    def look(self, after: str | None) -> Look | None:
        """Read everything; None where nothing was written since the last look, if that is known."""

    def close(self) -> None:
        """Let go of the store. Safe to call twice."""


MakeDrive = Callable[[Clock, Environment], Drive]


class MemoryDrive:
    """The model in memory, which never waits. A call that is given no time takes the world's."""

    def __init__(self, clock: Clock, environment: Environment) -> None:
        self.store = MemoryStore(clock=clock, environment=environment)

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        try:
            step.send(None)
        except StopIteration as done:
            value: T = done.value
            return value
        raise AssertionError("the model waited")

    def list_jobs(self) -> list[JobRecord]:
        state = self.store.state
        return [state.job_record(job_id) for job_id in sorted(state.jobs, reverse=True)]

    def count_busy(self) -> tuple[int, int]:
        tasks = (task for ranks in self.store.state.tasks.values() for task in ranks.values())
        live = [task for task in tasks if task.state.holds_lease]
        return sum(t.cpu_slots for t in live), sum(len(t.devices) for t in live)

    def find_due(self, now: datetime) -> Collection[str]:
        return LOOKED_FOR  # the model has no look

    def look(self, after: str | None) -> Look | None:
        run, store = self.run, self.store
        jobs = self.list_jobs()
        return Look(
            jobs=jobs,
            tasks={job.id: run(store.jobs.list_tasks(job.id)) for job in jobs},
            attempts={job.id: run(store.jobs.list_attempts(job.id)) for job in jobs},
            hosts=run(store.hosts.list_hosts(include_terminated=True)),
            news=run(store.events.read_events(after, limit=10_000)),
        )

    def close(self) -> None:
        pass


class PostgresDrive:
    """The store on a database of its own, and an event loop that turns for as long as a step takes.
    A call that is given no time takes the server's, which is months from the world's."""

    def __init__(self, server: PgServer, environment: Environment) -> None:
        self._server, self._name = server, server.take_emptied()
        self._environment = environment
        self._runner = asyncio.Runner()
        dsn = server.dsn_of(self._name)
        self._conn = psycopg.connect(dsn, autocommit=True)
        self._stamp = ""
        self._postgres = PostgresStore(dsn, max_connections=2, environment=environment)
        self.store = self._postgres
        self.run(self.store.open())

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(step)

    def list_jobs(self) -> list[JobRecord]:
        return self.run(self.store.jobs.list_jobs(EVERY_JOB))

    def count_busy(self) -> tuple[int, int]:
        gauges = self.run(self.store.read_gauges())
        return gauges.busy_cpu_slots, gauges.busy_gpus

    def find_due(self, now: datetime) -> Collection[str]:
        seconds = float(self._environment["dead_host_seconds"] or 0)
        given = {"silent_seconds": seconds, "keep_seconds": 0.0, "ahead": False}
        return self.run(self._postgres.leadership.look(LOOKED_FOR, **given, now=now)).due

    def look(self, after: str | None) -> Look | None:
        stamp, ids = self._read_stamp()
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        return self.run(self._look(ids, after))

    def _read_stamp(self) -> tuple[str, list[str]]:
        """Return the number of the server's next transaction that writes, once none of another
        database is under way, because events are shown only then (STORE-4); and every job's id."""
        for _ in range(10_000):
            row = self._conn.execute(_STAMP).fetchone()
            if row is not None and row[0]:
                return str(row[1]), list(row[2])
        raise AssertionError("another transaction of the server does not come to its end")

    async def _look(self, ids: list[str], after: str | None) -> Look:
        """Read as `MemoryDrive` does, in one round trip."""
        tx, number = parse_event_id(after)
        since = {"tx": str(tx), "id": number, "job_id": None, "kinds": None, "limit": 10_000}
        every = {
            "ids": None,
            "include_terminated": True,
            "dead": False,
            "trouble": False,
            "gpus": False,
            "part": None,
            "limit": None,
        }
        jobs, tasks, hosts, news, *attempts = await self._postgres.session.single(
            lambda tx: tx.many(
                ("read_jobs", {"ids": ids}),
                ("read_tasks", {"ids": ids}),
                ("read_hosts", every),
                ("read_events", since),
                *(("read_attempts", {"id": job_id}) for job_id in ids),
            )
        )
        look = Look(
            jobs=msgspec.convert(jobs, list[JobRecord]),
            tasks={job_id: [] for job_id in ids},
            attempts={
                job_id: msgspec.convert(rows, list[AttemptRecord])
                for job_id, rows in zip(ids, attempts, strict=True)
            },
            hosts=msgspec.convert(hosts, list[HostRecord]),
            news=[make_event(row) for row in news],
        )
        for task in msgspec.convert(tasks, list[TaskRecord]):
            look.tasks[task.job_id].append(task)
        return look

    def close(self) -> None:
        if self._name:
            self.run(self.store.close())
            self._runner.close()
            self._conn.close()
            self._server.give_back(self._name)
            self._name = ""


def drive_postgres(server: PgServer) -> MakeDrive:
    """Return what makes worlds whose store is on this server."""
    return lambda clock, environment: PostgresDrive(server, environment)
