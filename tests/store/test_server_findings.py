"""What `holdfast db status` says of a server that is set up otherwise than Holdfast wants."""

from __future__ import annotations

import psycopg
import pytest

from holdfast.store.postgres.connection.migrate import migrate, read_findings
from holdfast.store.postgres.connection.server_findings import (
    CONNECTIONS,
    ServerState,
    list_findings,
)

STOCK = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "max_connections": "100",
    "superuser_reserved_connections": "3",
    "autovacuum": "on",
    "track_counts": "on",
    "max_wal_size": "1024",
    "max_slot_wal_keep_size": "-1",
    "jit": "off",
    "statement_timeout": "30000",
    "idle_in_transaction_session_timeout": "5000",
    "client_connection_check_interval": "10000",
}
UNITS = {"max_wal_size": "MB", "max_slot_wal_keep_size": "MB"}


def name_findings(changed: dict[str, str] | None = None, **facts: object) -> list[str]:
    state = ServerState(settings={**STOCK, **(changed or {})}, units=UNITS, **facts)  # type: ignore[arg-type]  # facts of several types
    found = list_findings(state)
    assert all(f.effect and f.mend and f.value in str(f) for f in found)
    return [f.name for f in found]


def test_a_stock_server_has_no_fault() -> None:
    assert name_findings() == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fsync", "off"),
        ("full_page_writes", "off"),
        ("synchronous_commit", "off"),
        ("default_transaction_read_only", "on"),
        ("autovacuum", "off"),
        ("track_counts", "off"),
        ("max_wal_size", "64"),
        ("max_connections", "13"),
        ("jit", "on"),
        ("statement_timeout", "0"),
        ("idle_in_transaction_session_timeout", "0"),
        ("client_connection_check_interval", "0"),
    ],
)
def test_a_setting_is_named_with_its_mend(name: str, value: str) -> None:
    assert name_findings({name: value}) == [name]


def test_facts_that_are_no_settings_are_named_too() -> None:
    assert name_findings(standby=True) == ["the server"]
    assert name_findings(clients=100 - 3 - CONNECTIONS) == []
    assert name_findings(clients=100 - 3 - CONNECTIONS + 1) == ["max_connections"]
    assert name_findings(role_limit=5) == ["the connection limit of the role"]
    assert name_findings(database_limit=5) == ["the connection limit of the database"]
    assert name_findings(idle_slots=("old",)) == ["the replication slot old"]
    assert name_findings({"max_slot_wal_keep_size": "64"}, idle_slots=("old",)) == []
    assert name_findings(oldest_seconds=3600.0) == ["the oldest transaction of another client"]


def test_what_holdfasts_own_sessions_set_is_no_finding(pg_database: str) -> None:
    migrate(pg_database)
    before = [finding.name for finding in read_findings(pg_database)]
    with psycopg.connect(pg_database, autocommit=True) as conn:
        for setting in ("jit = on", "statement_timeout = 7", "lock_timeout = 7"):
            conn.execute(f"alter database {conn.info.dbname} set {setting}".encode())
    assert [finding.name for finding in read_findings(pg_database)] == before
    with psycopg.connect(pg_database, autocommit=True) as conn:
        conn.execute(f"alter database {conn.info.dbname} connection limit 4".encode())
    after = [finding.name for finding in read_findings(pg_database)]
    assert set(after) - set(before) <= {"the connection limit of the database", "max_connections"}
    assert "the connection limit of the database" in after
