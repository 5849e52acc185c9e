"""Schema migrations: numbered files, each applied once, in order, in a transaction of its own,
under one advisory lock.

- A file that was applied never changes: its checksum is recorded and compared.
- A schema newer than the code is refused before anything is written.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import NamedTuple

import psycopg

from holdfast.core.settings.resolve import BUILTIN_QUEUES
from holdfast.errors import Conflict, Unavailable
from holdfast.store.postgres.connection.server_findings import (
    ServerFinding,
    list_findings,
    read_state,
)
from holdfast.store.postgres.connection.server_needs import (
    check_dsn,
    explain_refusal,
    judge_server,
    read_facts,
)

LOCK_KEY = 0x686F6C64_6D696772  # "hold" "migr"
LOCK_WAIT_SECONDS = 60
_Connection = psycopg.Connection[tuple[object, ...]]
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")

_LEDGER = """
create table if not exists schema_migrations (
  version    integer primary key,
  name       text not null,
  checksum   text not null,
  applied_at timestamptz not null default clock_timestamp()
)"""


class Migration(NamedTuple):
    """One numbered file."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Return the SHA-256 of the text, in hex."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


class SchemaStatus(NamedTuple):
    """The migrations that a database has and lacks. version: the newest applied one, 0 for none."""

    version: int
    applied: list[str]
    pending: list[str]


def list_migrations() -> list[Migration]:
    """Return the package's migrations in order. Raises ValueError for a number that is missing or
    used twice."""
    found = []
    for entry in (resources.files("holdfast.store.postgres") / "migrations").iterdir():
        match = _FILE.fullmatch(entry.name)
        if match:
            found.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    found.sort()
    if [m.version for m in found] != list(range(1, len(found) + 1)):
        raise ValueError("migrations are not numbered 1, 2, 3, … without gaps")
    return found


def migrate(dsn: str, migrations: list[Migration] | None = None) -> list[str]:
    """Bring the database at `dsn` up to date and return the names applied, oldest first.

    Waits up to 60 s for another process that is migrating.

    Raises:
        ValidationError: the DSN cannot be read, or the server is not one Holdfast can use
        (`server_needs`).
        Conflict: the schema is newer than this code, or an applied file was changed.
        Unavailable: the server cannot be reached, takes no writes, or another process holds the
        lock for too long.
    """
    known = list_migrations() if migrations is None else migrations
    with _connect(dsn, to_write=True) as conn:
        conn.execute("set client_min_messages = warning; set statement_timeout = 0")
        conn.execute(f"set lock_timeout = '{LOCK_WAIT_SECONDS}s'".encode())
        conn.execute("select pg_advisory_lock(%s)", (LOCK_KEY,))
        try:
            conn.execute(_LEDGER)
            applied = _read_applied(conn)
            _check(known, applied)
            done = [_apply(conn, m) for m in known if m.version not in applied]
            _settle_events(conn)
            return done
        finally:
            conn.execute("select pg_advisory_unlock(%s)", (LOCK_KEY,))


@contextmanager
def _connect(dsn: str, *, to_write: bool) -> Iterator[_Connection]:
    """Connect to a server that Holdfast can use. Its failures, now or later, become errors of
    `holdfast.errors`."""
    check_dsn(dsn)
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as conn:
            refused = judge_server(read_facts(conn, dsn), to_write=to_write)
            if refused is not None:
                raise refused
            try:
                yield conn
            except psycopg.Error as error:
                told = explain_refusal(error, conn)
                if told is None:
                    raise
                raise told from error
    except psycopg.errors.LockNotAvailable as error:
        raise Unavailable(
            f"another process has been migrating the database for over {LOCK_WAIT_SECONDS} s"
        ) from error
    except psycopg.OperationalError as error:
        raise Unavailable(f"the database cannot be reached: {str(error).strip()}") from error


def read_status(dsn: str) -> SchemaStatus:
    """Return which migrations the database at `dsn` has and lacks, and write nothing. Raises as
    `migrate` does."""
    known = list_migrations()
    with _connect(dsn, to_write=False) as conn:
        there = conn.execute("select to_regclass('schema_migrations') is not null").fetchone()
        applied = _read_applied(conn) if there and there[0] else {}
    _check(known, applied)
    return SchemaStatus(
        version=max(applied, default=0),
        applied=[f"{m.version:04d}_{m.name}" for m in known if m.version in applied],
        pending=[f"{m.version:04d}_{m.name}" for m in known if m.version not in applied],
    )


def read_findings(dsn: str) -> list[ServerFinding]:
    """Return what a person should change about the server at `dsn`. Raises as `migrate` does."""
    with _connect(dsn, to_write=False) as conn:
        return list_findings(read_state(conn))


def _read_applied(conn: _Connection) -> dict[int, tuple[str, str]]:
    rows = conn.execute(
        "select version, name, checksum from schema_migrations order by version"
    ).fetchall()
    return {int(str(version)): (str(name), str(checksum)) for version, name, checksum in rows}


def _check(known: list[Migration], applied: dict[int, tuple[str, str]]) -> None:
    newest = max((m.version for m in known), default=0)
    if max(applied, default=0) > newest:
        raise Conflict(
            f"the database's schema is version {max(applied)}, but this Holdfast knows only up to "
            f"{newest}; "
            "run the newer Holdfast that wrote it, or restore an older database",
            code="schema_newer",
        )
    for m in known:
        if m.version in applied and applied[m.version][1] != m.checksum:
            raise Conflict(
                f"migration {m.version:04d}_{m.name} was changed after it was applied to this "
                "database; "
                "an applied migration must never change, so put the change into a new file",
                code="schema_changed",
            )


def _apply(conn: _Connection, m: Migration) -> str:
    with conn.transaction():
        conn.execute(m.sql.encode())
        if m.version == 1:
            conn.execute(
                "insert into queues (name, settings) select key, value from jsonb_each(%s::jsonb)",
                (json.dumps({name: dict(layer) for name, layer in BUILTIN_QUEUES.items()}),),
            )
        conn.execute(
            "insert into schema_migrations (version, name, checksum) values (%s, %s, %s)",
            (m.version, m.name, m.checksum),
        )
    return f"{m.version:04d}_{m.name}"


def _settle_events(conn: _Connection) -> None:
    """Make the events of a dump restored into another cluster visible: their transaction ids lie in
    its future."""
    tables = ["events", "event_batches"]
    there = [
        t for t in tables if conn.execute("select to_regclass(%s)", (t,)).fetchone() != (None,)
    ]
    ahead = "select from {} where tx >= pg_snapshot_xmax(pg_current_snapshot()) limit 1"
    if any(conn.execute(ahead.format(t).encode()).rowcount for t in there):
        with conn.transaction():  # their one order is by id from now on
            for table in there:
                conn.execute(f"update {table} set tx = '0'::xid8".encode())
