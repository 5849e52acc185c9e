"""A running scratch PostgreSQL for tests: one server for the session, one fresh database for each
test that asks.

The server is the embedded one, with durability off: a test that needs it after a kill starts its
own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from holdfast.store.embedded.postgres import EmbeddedPostgres
from holdfast.store.postgres.connection.migrate import migrate

FAST_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "100",
    "autovacuum_naptime": "5min",
}


@dataclass
class PgServer:
    """The session's server. `dsn` is its maintenance database; tests make their own with
    `create_database`."""

    postgres: EmbeddedPostgres
    dsn: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @cached_property
    def migrated(self) -> str:
        """The name of a database with all migrations, to be copied: a third of what migrating
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
def pg_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PgServer]:
    """One server per test session (with xdist: per worker), gone with it, also when the session is
    killed."""
    folder: Path = tmp_path_factory.mktemp("postgres")
    postgres = EmbeddedPostgres(folder / "pg", settings=FAST_SETTINGS)
    try:
        yield PgServer(postgres, postgres.start())
    finally:
        postgres.stop()


@pytest.fixture(scope="session")
def pg_dsn(pg_server: PgServer) -> str:
    """The DSN of the session's server, its maintenance database."""
    return pg_server.dsn


@pytest.fixture(scope="session")
def pg_template(pg_server: PgServer) -> str:
    """The name of a database with all migrations, to be copied."""
    return pg_server.migrated


@pytest.fixture
def pg_migrated(pg_server: PgServer, pg_template: str) -> Iterator[str]:
    """The DSN of a database with all migrations, made for this test alone and dropped after it."""
    name = pg_server.create_database(pg_template)
    try:
        yield pg_server.dsn_of(name)
    finally:
        pg_server.drop_database(name)


@pytest.fixture
def pg_database(pg_server: PgServer) -> Iterator[str]:
    """The DSN of an empty database made for this test alone and dropped after it."""
    name = pg_server.create_database()
    try:
        yield pg_server.dsn_of(name)
    finally:
        pg_server.drop_database(name)
