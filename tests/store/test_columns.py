"""The table of columns, the records and the schema agree, and every statement fits the schema."""

from __future__ import annotations

import re

import msgspec
import psycopg
import pytest

from holdfast.core.records import AttemptRecord, JobRecord, TaskRecord
from holdfast.moves.rows import AttemptChange, JobRow, TaskRow
from holdfast.store.postgres.connection.columns import COLUMNS, Writer, expand_columns
from holdfast.store.postgres.connection.migrate import migrate
from holdfast.store.postgres.connection.queries import QUERIES

RECORDS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "jobs": (JobRecord, JobRow),
    "tasks": (TaskRecord, TaskRow),
    "attempts": (AttemptRecord, AttemptChange),
}
COMPUTED = {
    "array_limited",
    "awaited",
    "supervised",
    "to_place",
    "host_name",
    "has_forensics",
    "first_beat_at",  # of an attempt, of its tasks
    "rate",  # of a job, of its tasks, as moved_at
    "moved_at",
    "code",
}
UNTYPED = {
    "42P18",
    "42P08",
    "42725",
}  # a parameter without a type: the driver gives one when it is sent


def test_table_records_and_schema_agree(pg_database: str) -> None:
    migrate(pg_database)
    with psycopg.connect(pg_database) as conn:
        for table, columns in COLUMNS.items():
            rows = conn.execute(
                "select attname, format_type(atttypid, atttypmod) from pg_attribute"
                " where attrelid = %s::regclass and attnum > 0 and not attisdropped",
                (table,),
            ).fetchall()
            there = {n: t.replace("timestamp with time zone", "timestamptz") for n, t in rows}
            assert {c: kind for c, (kind, _) in columns.items()} == {
                c: there.get(c) for c in columns
            }, table
            fields = {f for record in RECORDS[table] for f in record.__struct_fields__}
            assert fields - columns.keys() <= COMPUTED, table
            assert columns.keys() - fields == set(), table


def test_what_a_move_changes_of_an_attempt_is_written() -> None:
    written = {c for c, (_, writer) in COLUMNS["attempts"].items() if writer is not Writer.NONE}
    assert written == set(AttemptChange.__struct_fields__)


def test_every_statement_fits_the_schema(pg_database: str) -> None:
    migrate(pg_database)
    with psycopg.connect(pg_database, autocommit=True) as conn:
        for name, statement in QUERIES.items():
            params: dict[bytes, int] = {}
            text = re.sub(
                rb"%\((\w+)\)s",
                lambda m, p=params: b"$%d" % p.setdefault(m[1], len(p) + 1),
                statement,
            ).replace(b"%%", b"%")
            result = conn.pgconn.prepare(b"", text)
            state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
            assert state is None or state.decode() in UNTYPED, (name, result.error_message)


def test_placeholders() -> None:
    assert expand_columns("{columns:job:j but labels spec}").startswith("j.id, j.project")
    assert "spec" not in expand_columns("{columns:job:j but labels spec}")
    assert expand_columns("{assign:task}").startswith("state = x.state, lease_until = x.")
    assert expand_columns("{recordset:task}").startswith("job_id text, rank integer, state text")
    assert expand_columns("'{}' '{\"exit_code\": 0}'") == "'{}' '{\"exit_code\": 0}'"
    assert expand_columns("{candidate:c but job_id epoch}").startswith(
        "c.queue as queue, c.project"
    )
    assert expand_columns("{span:j}") in expand_columns("{candidate:j}")
    for rotten in (
        "{candidate:j but nothing}",
        "{columns:nothing:j}",
        "{columns:job:j but nothing}",
        "{assign:job_row}",
    ):
        with pytest.raises(ValueError, match=re.escape(rotten)):
            expand_columns(rotten)
