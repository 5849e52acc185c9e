"""Settings of a user's own server that cost Holdfast speed, room or safety, and their mends.

Settings that Holdfast's sessions set for themselves (`session_settings`) are no findings, as long
as they take effect.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import psycopg
from psycopg.rows import dict_row

from holdfast.store.postgres.connection.session_settings import write_session_settings

CONNECTIONS = 14
"""Most connections of a controller: ten in two pools, the lead's, two for notifications, and one for
second looks."""
OPEN_TRANSACTION_SECONDS = 600
LEAST_WAL_BYTES = 256 << 20
_UNITS = {"kB": 1 << 10, "8kB": 8 << 10, "MB": 1 << 20, "16MB": 16 << 20, "GB": 1 << 30, "B": 1}
_FACTS = """
select
  (select jsonb_object_agg(name, setting) from pg_settings) as settings,
  (select jsonb_object_agg(name, unit) from pg_settings where unit is not null) as units,
  pg_is_in_recovery() as standby,
  (select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()) as clients,
  (select rolconnlimit from pg_roles where rolname = current_user) as role_limit,
  (select datconnlimit from pg_database where datname = current_database()) as database_limit,
  (select coalesce(array_agg(slot_name::text order by slot_name), '{}') from pg_replication_slots
   where not active) as idle_slots,
  (select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::double precision from pg_stat_activity
   where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend') as oldest_seconds
"""


@dataclass(frozen=True)
class ServerFinding:
    """One problem of a server: the setting or fact, its value, the effect, and how to mend it."""

    name: str
    value: str
    effect: str
    mend: str

    def __str__(self) -> str:
        return f"{self.name} is {self.value}: {self.effect}. {self.mend}"


@dataclass(frozen=True)
class ServerState:
    """The facts about a server, read in a session of Holdfast.

    settings: name → value in force in that session. units: name → unit of the value. standby: the
    server accepts no writes. clients: number of other connections. role_limit, database_limit:
    limits of connections, -1 for none. idle_slots: replication slots without a reader.
    oldest_seconds: age of the oldest transaction of another client.
    """

    settings: Mapping[str, str]
    units: Mapping[str, str] = field(default_factory=dict)
    standby: bool = False
    clients: int = 0
    role_limit: int = -1
    database_limit: int = -1
    idle_slots: tuple[str, ...] = ()
    oldest_seconds: float = 0.0

    def read_bytes(self, name: str) -> int:
        """Return the bytes of a setting that PostgreSQL gives in a unit; -1 where it is not set."""
        value = int(self.settings.get(name, -1))
        return value * _UNITS.get(self.units.get(name, "B"), 1) if value >= 0 else value


def read_state(conn: psycopg.Connection[tuple[object, ...]]) -> ServerState:
    """Read the state of the server behind `conn`, under the settings of Holdfast's sessions."""
    conn.execute(write_session_settings(conn.info.server_version), prepare=False)
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(_FACTS.encode()).fetchone() or {}
    return ServerState(**{**row, "idle_slots": tuple(row.get("idle_slots") or ())})


def list_findings(state: ServerState) -> list[ServerFinding]:
    """Return the problems that a person should mend, the gravest first."""
    return [
        *_judge_writes(state),
        *_judge_safety(state),
        *_judge_connections(state),
        *_judge_upkeep(state),
        *_judge_sessions(state),
    ]


def _judge_writes(state: ServerState) -> Iterator[ServerFinding]:
    if state.standby:
        yield ServerFinding(
            "the server", "a standby", "it takes no writes, and Holdfast waits for it",
            "Name the primary in the DSN; with several hosts add target_session_attrs=read-write",
        )  # fmt: skip
    elif state.settings.get("default_transaction_read_only") == "on":
        yield ServerFinding(
            "default_transaction_read_only", "on", "no write succeeds, and Holdfast waits",
            "ALTER ROLE … SET default_transaction_read_only = off, or the same for the database",
        )  # fmt: skip


def _judge_safety(state: ServerState) -> Iterator[ServerFinding]:
    effects = {
        "fsync": "a crash of the machine may destroy the database",
        "full_page_writes": "a crash of the machine may destroy the database",
        "synchronous_commit": "a crash of the server forgets jobs that were accepted",
    }
    for name, effect in effects.items():
        if state.settings.get(name) == "off":
            yield ServerFinding(name, "off", effect, f"ALTER SYSTEM SET {name} = on, then reload")


def _judge_connections(state: ServerState) -> Iterator[ServerFinding]:
    def read(name: str) -> int:
        return int(state.settings.get(name, 0))

    most = read("max_connections")
    kept = read("superuser_reserved_connections") + read("reserved_connections")
    room = most - kept - state.clients
    if most and room < CONNECTIONS:
        yield ServerFinding(
            "max_connections", str(most),
            f"{kept} are kept for superusers and {state.clients} are in use, so {max(0, room)} are "
            f"left, and one controller holds up to {CONNECTIONS}",
            f"ALTER SYSTEM SET max_connections = {most + 2 * CONNECTIONS}, then restart the server",
        )  # fmt: skip
    for name, limit, words in (
        ("the connection limit of the role", state.role_limit, "ALTER ROLE"),
        ("the connection limit of the database", state.database_limit, "ALTER DATABASE"),
    ):
        if 0 <= limit < CONNECTIONS:
            yield ServerFinding(
                name, str(limit), f"one controller holds up to {CONNECTIONS} connections",
                f"{words} … CONNECTION LIMIT {2 * CONNECTIONS}",
            )  # fmt: skip


def _judge_upkeep(state: ServerState) -> Iterator[ServerFinding]:
    for name in ("autovacuum", "track_counts"):
        if state.settings.get(name) == "off":
            yield ServerFinding(
                name, "off",
                "rows that were changed are never cleared away, so every look at the queue gets "
                "slower and the disk fills",
                f"ALTER SYSTEM SET {name} = on, then reload",
            )  # fmt: skip
    if 0 <= state.read_bytes("max_wal_size") < LEAST_WAL_BYTES:
        yield ServerFinding(
            "max_wal_size", f"{state.read_bytes('max_wal_size') >> 20} MB",
            "a busy queue forces a checkpoint every few seconds",
            "ALTER SYSTEM SET max_wal_size = '1GB', then reload",
        )  # fmt: skip
    if state.idle_slots and state.read_bytes("max_slot_wal_keep_size") < 0:
        slot = state.idle_slots[0]
        yield ServerFinding(
            f"the replication slot {slot}", "without a reader",
            "the server keeps all of its log for it, until the disk is full",
            f"Start its reader, or SELECT pg_drop_replication_slot('{slot}')",
        )  # fmt: skip
    if state.oldest_seconds > OPEN_TRANSACTION_SECONDS:
        yield ServerFinding(
            "the oldest transaction of another client", f"{state.oldest_seconds / 60:.0f} min old",
            "no row that changed since can be cleared away, so claims get slower",
            "End it: pg_stat_activity shows it, and pg_terminate_backend(pid) ends it",
        )  # fmt: skip


def _judge_sessions(state: ServerState) -> Iterator[ServerFinding]:
    for name in ("jit", "statement_timeout", "idle_in_transaction_session_timeout"):
        right = {"jit": "off", "statement_timeout": "30000"}.get(name, "5000")
        found = state.settings.get(name, right)
        if found != right:
            yield ServerFinding(
                name, found, "Holdfast's sessions set it, and it does not hold",
                f"Look for what sets it back between Holdfast and the server; wanted is {right}",
            )  # fmt: skip
    if state.settings.get("client_connection_check_interval") == "0":
        yield ServerFinding(
            "client_connection_check_interval", "0",
            "the server cannot watch for clients that died, so a killed controller's locks may "
            "stay until its statement ends",
            "Run the server on Linux",
        )  # fmt: skip
