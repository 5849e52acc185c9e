"""Requirements on a user's own PostgreSQL server, and how to meet them.

The requirements are checked when the schema is brought up to date or asked about, so that an
unsuitable server is refused at the start and by name, not by the first statement that happens to
fail.
"""

from dataclasses import dataclass

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict

from holdfast.errors import HoldfastError, Unavailable, ValidationError
from holdfast.store.embedded.binaries import MINIMUM_MAJOR

_POOLER_LOOKS = 8


@dataclass(frozen=True)
class ServerFacts:
    """The facts about a server, read on a new connection. number: the server's
    `server_version_num`, 150018 for 15.18. shares_sessions: a pooler gives one session to several
    connections in turn."""

    number: int
    version: str
    encoding: str
    read_only: bool
    shares_sessions: bool = False


def check_dsn(dsn: str) -> None:
    """Raise ValidationError where libpq cannot read `dsn`. libpq's message is left out, because it
    quotes the DSN with its password."""
    try:
        conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise ValidationError(
            "the DSN cannot be read: give postgresql://user:password@host:5432/database (with "
            "%-escapes for @ : / # % in a "
            "password), or `host=… dbname=… user=…`",
            code="bad_dsn",
            field="dsn",
        ) from error


def read_facts(conn: psycopg.Connection[tuple[object, ...]], dsn: str) -> ServerFacts:
    """Read the facts of the server behind `conn`, which was made with `dsn`."""
    info = conn.info
    row = conn.execute("show transaction_read_only").fetchone()
    return ServerFacts(
        number=info.server_version,
        version=info.parameter_status("server_version") or str(info.server_version),
        encoding=info.parameter_status("server_encoding") or "unknown",
        read_only=row is not None and row[0] == "on",
        shares_sessions=_shares_sessions(conn, dsn),
    )


def _shares_sessions(conn: psycopg.Connection[tuple[object, ...]], dsn: str) -> bool:
    """Return whether a pooler in transaction or statement mode stands before the server.

    A pooler names a process to its client that is not the server's. In session mode two connections
    have two processes of the server; in the other modes the second soon has that of the first.
    """
    mine = _ask_pid(conn)
    if mine == conn.info.backend_pid:
        return False
    with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as other:
        theirs = _ask_pid(other)
        seen = {_ask_pid(each) for _ in range(_POOLER_LOOKS) for each in (conn, other)}
    return seen != {mine, theirs} or mine == theirs


def _ask_pid(conn: psycopg.Connection[tuple[object, ...]]) -> object:
    row = conn.execute("select pg_backend_pid()", prepare=False).fetchone()
    return row[0] if row else None


def judge_server(facts: ServerFacts, *, to_write: bool) -> HoldfastError | None:
    """Return why this server cannot be used, or None."""
    if facts.number < MINIMUM_MAJOR * 10_000:
        return ValidationError(
            f"the database is PostgreSQL {facts.version}, and Holdfast needs {MINIMUM_MAJOR} or "
            "newer: upgrade the server, or name another",
            code="postgres_too_old",
            field="dsn",
        )
    if facts.encoding != "UTF8":
        return ValidationError(
            f"the database keeps its text as {facts.encoding}, and Holdfast needs UTF8: make one "
            "with "
            "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and name it in the DSN",
            code="wrong_encoding",
            field="dsn",
        )
    if facts.shares_sessions:
        return ValidationError(
            "a pooler in transaction mode stands before the database, and Holdfast needs sessions "
            "of its own for notifications and settings: set pool_mode = session for its user or "
            "database, or name the server itself in the DSN",
            code="pooler_in_transaction_mode",
            field="dsn",
        )
    if to_write and facts.read_only:
        return Unavailable(
            "the database takes no writes: it is a standby, or default_transaction_read_only is "
            "on; name the primary in the DSN "
            "(with several hosts: target_session_attrs=read-write)",
            code="read_only",
        )
    return None


def explain_refusal(
    error: psycopg.Error, conn: psycopg.Connection[tuple[object, ...]]
) -> HoldfastError | None:
    """Return an error that a user can act on for a refused statement; None where the server's set-up
    is not the reason."""
    if isinstance(error, pg.ReadOnlySqlTransaction):  # it became a standby after the check
        return Unavailable(
            f"the database takes no writes any more: {str(error).strip()}", code="read_only"
        )
    if isinstance(error, pg.InsufficientPrivilege | pg.InvalidSchemaName):
        user, name = conn.info.user, conn.info.dbname
        return ValidationError(
            f'the role "{user}" may not keep its tables in the database "{name}": '
            f"{str(error).strip().splitlines()[0]}. Since PostgreSQL 15 "
            f'only its owner may by itself: ALTER DATABASE "{name}" OWNER TO "{user}", or GRANT '
            f'CREATE ON SCHEMA public TO "{user}"',
            code="no_privilege",
            field="dsn",
        )
    return None
