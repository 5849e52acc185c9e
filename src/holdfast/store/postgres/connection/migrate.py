"""Make the tables of an empty database, and bring those of an older one up to date, under one advisory
lock, each version in a transaction of its own.

The files of `sql/` are the newest schema, which a new database is made with at once. The schema of the
first release is version 1; each later change of it is also a numbered file, `migrations/0002_name.sql`
and so on, for the databases that are there. The folder is empty until then.

- A schema that was applied never changes: its checksum is recorded and compared.
- A schema newer than the code is refused before anything is written.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import NamedTuple

import psycopg

from holdfast.core.settings.resolve import BUILTIN_QUEUES
from holdfast.errors import Conflict, Unavailable
from holdfast.store.postgres.connection.queries import load_schema
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
LEDGER = b"select version, name, checksum from schema_migrations"
_BLOBS = b"select blob_place, blob_store from cluster"
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")

MADE = "schema"
"""The name of the version that a database was made with, all at once."""
_DEVELOPMENT = (
    "a development version of Holdfast, from before the first release, made the tables of this database, "
    "and no migration leads from them to the tables of this version; "
    "make a new database, or give `holdfast up` a new folder (--data)"
)
Ledger = Mapping[int, tuple[str, str]]
"""The versions that a database has had: name and checksum by number."""


class Migration(NamedTuple):
    """One numbered file, or the schema of all tables."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Return the SHA-256 of the text."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.version:04d}_{self.name}"


class SchemaStatus(NamedTuple):
    """The versions a database has had, and those that it lacks. `version` 0: it has no tables yet.
    blobs: where the blobs are that it names, and the id of that store; empty where none is known."""

    version: int
    applied: list[str]
    pending: list[str]
    blobs: tuple[str, str] = ("", "")


def list_migrations() -> list[Migration]:
    """Return the package's migrations in order, from 2 on. Raises ValueError for a number that is
    missing or there twice."""
    found = []
    for entry in (resources.files("holdfast.store.postgres") / "migrations").iterdir():
        match = _FILE.fullmatch(entry.name)
        if match:
            found.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    found.sort()
    if [m.version for m in found] != list(range(2, len(found) + 2)):
        raise ValueError("migrations are not numbered 2, 3, 4, … without gaps")
    return found


def read_schema(later: Sequence[Migration]) -> Migration:
    """Return the script that makes all tables, as the newest version: that of the last of `later`."""
    return Migration(later[-1].version if later else 1, MADE, load_schema())


def migrate(dsn: str, later: list[Migration] | None = None) -> list[str]:
    """Make the tables of the database at `dsn`, or bring them up to date, and return the names of
    the applied migrations, oldest first. later: the migrations to apply, instead of the package's
    own.

    The call waits up to 60 s for another process that is migrating.

    Raises:
        ValidationError: the DSN cannot be read, or the server is not one Holdfast can use
        (`server_needs`).
        Conflict: the schema is newer than this code, was made by a development version, or an
        applied
        file was changed.
        Unavailable: the server cannot be reached, takes no writes, or another process holds the
        lock for too long.
    """
    later = list_migrations() if later is None else later
    with _connect(dsn, to_write=True) as conn:
        conn.execute("set client_min_messages = warning; set statement_timeout = 0")
        conn.execute(f"set lock_timeout = '{LOCK_WAIT_SECONDS}s'".encode())
        conn.execute("select pg_advisory_lock(%s)", (LOCK_KEY,))
        try:
            applied = _read_applied(conn)
            check_ledger(applied, later)
            done = [_apply(conn, m) for m in _list_pending(applied, later)]
            _settle_events(conn)
            return done
        finally:
            conn.execute("select pg_advisory_unlock(%s)", (LOCK_KEY,))


@contextmanager
def _connect(dsn: str, *, to_write: bool) -> Iterator[_Connection]:
    """Connect to a server that Holdfast can use. Failures of the connection, now or later, become
    errors of `holdfast.errors`."""
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
    """Return which versions of the schema the database at `dsn` has and which it lacks; write
    nothing. Raises as `migrate` does."""
    later = list_migrations()
    with _connect(dsn, to_write=False) as conn:
        applied = _read_applied(conn)
        check_ledger(applied, later)
        known = conn.execute(_BLOBS).fetchone() if applied else None
    return SchemaStatus(
        version=max(applied, default=0),
        applied=[f"{version:04d}_{name}" for version, (name, _) in applied.items()],
        pending=[str(m) for m in _list_pending(applied, later)],
        blobs=(str(known[0]), str(known[1])) if known else ("", ""),
    )


def read_findings(dsn: str) -> list[ServerFinding]:
    """Return the problems of the server at `dsn` that a person should mend. Raises as `migrate`
    does."""
    with _connect(dsn, to_write=False) as conn:
        return list_findings(read_state(conn))


def read_ledger(rows: Iterable[Sequence[object]]) -> Ledger:
    """Return the rows of `schema_migrations` (version, name, checksum), oldest first."""
    found = {int(str(version)): (str(name), str(checksum)) for version, name, checksum in rows}
    return dict(sorted(found.items()))


def check_ledger(applied: Ledger, later: Sequence[Migration]) -> None:
    """Raise Conflict for a database that this code can neither use nor bring up to date."""
    schema = read_schema(later)
    newest = max(applied, default=0)
    made = {version: checksum for version, (name, checksum) in applied.items() if name == MADE}
    if applied and (not made or made.get(schema.version, schema.checksum) != schema.checksum):
        raise Conflict(_DEVELOPMENT, code="schema_unreleased")
    if newest > schema.version:
        raise Conflict(
            f"the database's schema is version {newest}, but this Holdfast knows only up to "
            f"{schema.version}; "
            "run the newer Holdfast that wrote it, or restore an older database",
            code="schema_newer",
        )
    for m in later:
        name, checksum = applied.get(m.version, (MADE, ""))
        if name != MADE and checksum != m.checksum:
            raise Conflict(
                f"migration {m} was changed after it was applied to this database; "
                "an applied migration must never change, so put the change into a new file",
                code="schema_changed",
            )


def check_current(applied: Ledger) -> None:
    """Raise Conflict for a database that this code cannot serve: for the reasons of `check_ledger`,
    and for an older schema."""
    later = list_migrations()
    check_ledger(applied, later)
    if pending := _list_pending(applied, later):
        raise Conflict(
            f"the database's schema is version {max(applied, default=0)} and this Holdfast needs "
            f"{pending[-1].version}; run `holdfast db migrate`",
            code="schema_old",
        )


def _list_pending(applied: Ledger, later: Sequence[Migration]) -> list[Migration]:
    if not applied:
        return [read_schema(later)]
    return [m for m in later if m.version > max(applied)]


def _read_applied(conn: _Connection) -> Ledger:
    there = conn.execute("select to_regclass('schema_migrations') is not null").fetchone()
    if not (there and there[0]):
        return {}
    return read_ledger(conn.execute(LEDGER).fetchall())


def _apply(conn: _Connection, m: Migration) -> str:
    with conn.transaction():
        conn.execute(m.sql.encode())
        if m.name == MADE:
            conn.execute(
                "insert into queues (name, settings) select key, value from jsonb_each(%s::jsonb)",
                (json.dumps({name: dict(layer) for name, layer in BUILTIN_QUEUES.items()}),),
            )
        conn.execute(
            "insert into schema_migrations (version, name, checksum) values (%s, %s, %s)",
            (m.version, m.name, m.checksum),
        )
    return str(m)


def _settle_events(conn: _Connection) -> None:
    """Make the events visible that a dump brought into another cluster, where their transaction ids
    lie in the future."""
    tables = ["events", "event_batches"]
    ahead = "select from {} where tx >= pg_snapshot_xmax(pg_current_snapshot()) limit 1"
    if any(conn.execute(ahead.format(t).encode()).rowcount for t in tables):
        with conn.transaction():  # their one order is by id from now on
            for table in tables:
                conn.execute(f"update {table} set tx = '0'::xid8".encode())
