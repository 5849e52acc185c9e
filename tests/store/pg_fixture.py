"""A running scratch PostgreSQL for tests: one server for the session, one fresh database for each
test that asks.

The server is the embedded one, with durability off: a test that needs it after a kill starts its
own. With `HOLDFAST_TESTS_POSTGRES=stock` it is a packaged server as its package sets it up.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
import pytest
from bench.stock_server import StockServer
from psycopg import sql

from holdfast.store.embedded.postgres import EmbeddedPostgres
from holdfast.store.postgres.connection.migrate import migrate
from holdfast.store.postgres.store import PostgresStore
from tests.store.rig import Rig

FAST_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "100",
    "autovacuum_naptime": "5min",
}


EMPTIER = "emptier"
"""The name of the connections that empty databases for the next test, which no test may end."""
_CUT_OTHERS = """
    select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid()
"""
_LARGE_BYTES = 64 << 20  # four times a fresh one: rows that were deleted take room still
_LIST_TABLES = "select tablename from pg_tables where schemaname = 'public'"
_FILL = sql.SQL(
    "insert into {table} overriding system value"
    " select * from json_populate_recordset(null::{table}, {rows})"
)
_RESET_SEQUENCES = sql.SQL(
    "select setval(format('%I.%I', schemaname, sequencename), start_value, false) from pg_sequences"
)


@dataclass
class PgServer:
    """The session's server. `dsn` is its maintenance database; tests make their own with
    `create_database`."""

    postgres: EmbeddedPostgres | StockServer
    dsn: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _emptied: list[str] = field(default_factory=list)
    _emptiers: dict[str, psycopg.Connection] = field(default_factory=dict)

    @cached_property
    def migrated(self) -> str:
        """The name of a database with all tables, to be copied: a third of what migrating
        costs."""
        name = self.create_database()
        migrate(self.dsn_of(name))
        return name

    def create_database(self, template: str = "template1") -> str:
        """Make a fresh database and return its name. No connection to `template` may be open."""
        name = f"test_{next(self._numbers)}"
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template)
        )
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement)
        return name

    def take_emptied(self) -> str:
        """Return the name of a migrated database without a job, which `give_back` empties."""
        return self._emptied.pop() if self._emptied else self.create_database(self.migrated)

    def give_back(self, name: str) -> None:
        """Empty a database for the next test, a hundredth of what dropping and copying costs. Its
        connections are cut, its schema must be as it was.

        One connection to each is kept for that: a new one knows no table yet, and looking them all
        up is most of the cost. A database that has grown large is dropped instead.
        """
        emptier = self._emptiers.get(name)
        if emptier is None or emptier.closed:
            emptier = self._emptiers[name] = psycopg.connect(
                self.dsn_of(name), autocommit=True, application_name=EMPTIER
            )
        # The server's own wait for an end looks ten times a second; most are over within a few ms.
        while emptier.execute(_CUT_OTHERS).fetchone():
            time.sleep(0.001)
        size = emptier.execute("select pg_database_size(current_database())").fetchone()
        if size and size[0] > _LARGE_BYTES:
            self._emptiers.pop(name).close()
            self.drop_database(name)
            return
        emptier.execute(self._emptying)
        self._emptied.append(name)

    def close(self) -> None:
        """Close what is kept."""
        for connection in self._emptiers.values():
            connection.close()

    @cached_property
    def _emptying(self) -> sql.Composed:
        """Statements that leave in every table and sequence what the migrations put there."""
        with psycopg.connect(self.dsn_of(self.migrated), autocommit=True) as connection:
            tables = [row[0] for row in connection.execute(_LIST_TABLES)]
            words = [sql.SQL("set session_replication_role = replica")]  # no trigger, no order
            for table in map(sql.Identifier, tables):
                words.append(sql.SQL("delete from {}").format(table))
                query = sql.SQL("select json_agg(t) from {} t").format(table)
                (rows,) = connection.execute(query).fetchone() or (None,)
                if rows is not None:
                    words.append(_FILL.format(table=table, rows=sql.Literal(json.dumps(rows))))
            words.append(_RESET_SEQUENCES)
        return sql.SQL(";").join(words)

    def drop_database(self, name: str) -> None:
        """Drop a database, cutting its open connections."""
        statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement)

    def dsn_of(self, name: str, *, loopback: bool = False) -> str:
        """How to connect to the database `name`; over TCP with `loopback`, for a proxy in
        between."""
        return self.postgres.dsn(name, loopback=loopback)


@pytest.fixture(scope="session")
def pg_server(memory_home: Path) -> Iterator[PgServer]:
    """One server per test session (with xdist: per worker), gone with it, also when the session is
    killed."""
    postgres: EmbeddedPostgres | StockServer
    if os.environ.get("HOLDFAST_TESTS_POSTGRES") == "stock":
        postgres = StockServer()
    else:
        postgres = EmbeddedPostgres(memory_home / "postgres", settings=FAST_SETTINGS)
    try:
        server = PgServer(postgres, postgres.start())
        yield server
        server.close()
    finally:
        postgres.stop()


@pytest.fixture(scope="session")
def migrated_cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped server's data folder whose own database has all tables, to be copied: made once
    for all workers, for tests that are about no first start."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    place, making = shared / "migrated-cluster", shared / "migrated-cluster.new"
    with (shared / "migrated-cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            postgres = EmbeddedPostgres(making, settings=FAST_SETTINGS)
            try:
                migrate(postgres.start())
            finally:
                postgres.stop()
            making.rename(place)
    return place / "data"


@pytest.fixture(scope="session")
def pg_dsn(pg_server: PgServer) -> str:
    """The DSN of the session's server, its maintenance database."""
    return pg_server.dsn


@pytest.fixture(scope="session")
def pg_template(pg_server: PgServer) -> str:
    """The name of a database with all tables, to be copied."""
    return pg_server.migrated


@pytest.fixture
def pg_migrated(pg_server: PgServer, pg_template: str) -> Iterator[str]:
    """The DSN of a database with all tables, made for this test alone and dropped after it."""
    name = pg_server.create_database(pg_template)
    try:
        yield pg_server.dsn_of(name)
    finally:
        pg_server.drop_database(name)


@pytest.fixture
def pg_emptied(pg_server: PgServer) -> Iterator[str]:
    """The DSN of a migrated database without a job, which earlier tests may have used: for tests
    that go through the store and change no schema."""
    name = pg_server.take_emptied()
    yield pg_server.dsn_of(name)
    pg_server.give_back(name)


class MakeStore:
    """Opens stores, each on a database of its own, with whatever `PostgresStore` may be told."""

    def __init__(self, server: PgServer) -> None:
        self._server = server
        self._made: list[tuple[str, PostgresStore]] = []

    async def __call__(self, **told: Any) -> PostgresStore:
        name = self._server.take_emptied()
        store = PostgresStore(self._server.dsn_of(name), max_connections=4, **told)
        self._made.append((name, store))
        await store.open()
        return store

    async def close(self) -> None:
        """Close them all, and give their databases back."""
        while self._made:
            name, store = self._made.pop()
            await store.close()
            self._server.give_back(name)


@pytest.fixture
async def make_store(pg_server: PgServer) -> AsyncIterator[MakeStore]:
    make = MakeStore(pg_server)
    yield make
    await make.close()


@pytest.fixture
async def told_rig(make_store: MakeStore) -> Rig:
    """A store that is told the rig's time wherever a caller gives none."""
    rig = Rig(None)
    rig.store = await make_store(clock=lambda: rig.now)
    return rig


@pytest.fixture
def pg_database(pg_server: PgServer) -> Iterator[str]:
    """The DSN of an empty database made for this test alone and dropped after it."""
    name = pg_server.create_database()
    try:
        yield pg_server.dsn_of(name)
    finally:
        pg_server.drop_database(name)
