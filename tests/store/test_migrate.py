"""Migrations: applied once, in order, under a lock; refused when they do not fit. And the schema
says what the code says."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from typing import Any

import psycopg
import pytest

from holdfast.core.causes import Budget, Cause
from holdfast.core.settings.resolve import BUILTIN_QUEUES
from holdfast.core.states import AttemptState, HostState, JobState, Outcome, TaskState
from holdfast.errors import Conflict, Unavailable
from holdfast.store.postgres.connection.migrate import (
    Migration,
    list_migrations,
    migrate,
    read_status,
)
from holdfast.store.postgres.connection.queries import load_queries, parse_queries
from holdfast.store.postgres.store import PostgresStore
from tests.waits import stretch

ENUMS = {
    "jobs_state_check": JobState, "jobs_cause_check": Cause, "jobs_drain_cause_check": Cause,
    "jobs_outcome_check": Outcome, "tasks_state_check": TaskState, "attempts_state_check": AttemptState,
    "attempts_outcome_check": Outcome, "attempts_cause_check": Cause, "attempts_charged_to_check": Budget,
    "hosts_state_check": HostState,
}  # fmt: skip


def test_migrating_twice_applies_once(pg_database: str) -> None:
    names = [f"{m.version:04d}_{m.name}" for m in list_migrations()]
    assert read_status(pg_database) == (0, [], names)
    assert migrate(pg_database) == names
    assert migrate(pg_database) == []
    assert read_status(pg_database) == (len(names), names, [])
    with psycopg.connect(pg_database) as conn:
        queues = dict(conn.execute("select name, settings from queues").fetchall())
    assert queues == BUILTIN_QUEUES


def test_the_limits_that_every_cluster_began_with_go_and_others_stay(pg_database: str) -> None:
    """A job has no time limit unless its queue names one; calls keep theirs without a setting."""
    known = list_migrations()
    before = next(m.version for m in known if m.name == "no_limit_unless_named")
    migrate(pg_database, [m for m in known if m.version < before])
    limits = {"gpu": 8100.0, "cpu": 60.0, "video": 1800.0}
    with psycopg.connect(pg_database, autocommit=True) as conn:
        for name, seconds in limits.items():
            given = json.dumps({"time_limit_seconds": seconds, "on_trip": "fail"})
            conn.execute(
                "insert into queues (name, settings) values (%s, %s)"
                " on conflict (name) do update set settings = excluded.settings",
                (name, given),
            )
        migrate(pg_database)
        found = dict(conn.execute("select name, settings from queues").fetchall())
    assert found["gpu"] == {"on_trip": "fail"}
    assert found["cpu"]["time_limit_seconds"] == 60.0
    assert found["video"]["time_limit_seconds"] == 1800.0


def test_two_migrating_at_once_take_turns(pg_database: str) -> None:
    done: list[list[str]] = []
    threads = [threading.Thread(target=lambda: done.append(migrate(pg_database))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(stretch(30))
    assert sorted(map(len, done)) == [0, 0, len(list_migrations())]


def test_a_newer_schema_is_refused_with_a_sentence(pg_database: str) -> None:
    known = list_migrations()
    migrate(
        pg_database, [*known, Migration(len(known) + 1, "future", "create table future (id int)")]
    )
    for refused in (lambda: migrate(pg_database), lambda: read_status(pg_database)):
        with pytest.raises(Conflict, match="newer Holdfast") as caught:
            refused()
        assert caught.value.code == "schema_newer"


def test_a_changed_migration_is_refused(pg_database: str) -> None:
    known = list_migrations()
    migrate(pg_database)
    with pytest.raises(Conflict, match="must never change"):
        migrate(
            pg_database, [*known[:-1], known[-1]._replace(sql=known[-1].sql + "\n-- a thought")]
        )


def test_a_failing_migration_leaves_nothing_behind(pg_database: str) -> None:
    known = list_migrations()
    broken = Migration(len(known) + 1, "broken", "create table half (id int); select 1 / 0")
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(pg_database, [*known, broken])
    with psycopg.connect(pg_database) as conn:
        assert conn.execute("select to_regclass('half')").fetchone() == (None,)
    assert read_status(pg_database).version == len(known)


def test_events_of_a_restored_dump_are_settled(pg_database: str) -> None:
    migrate(pg_database)
    with psycopg.connect(pg_database, autocommit=True) as conn:
        conn.execute(
            "insert into events (tx, at, kind) values ('99999999999', now(), 'a'), "
            "('99999999998', now(), 'b')"
        )
        insert_batch(conn, tx="'99999999997'", kind="c")
        migrate(pg_database)
        rows = conn.execute(
            "select kind, id from events where tx < pg_snapshot_xmin(pg_current_snapshot()) "
            "union all select kind, id from batched_events "
            "where tx < pg_snapshot_xmin(pg_current_snapshot()) order by id"
        ).fetchall()
    assert [kind for kind, _ in rows] == ["a", "b", "c"]


def test_batches_alone_of_a_restored_dump_are_settled(pg_database: str) -> None:
    migrate(pg_database)
    with psycopg.connect(pg_database, autocommit=True) as conn:
        insert_batch(conn, tx="'99999999997'", kind="c")
        migrate(pg_database)
        assert conn.execute("select tx::text from event_batches").fetchall() == [("0",)]


def insert_batch(conn: psycopg.Connection[Any], *, tx: str, kind: str) -> None:
    """Write the event of one job as a batch."""
    conn.execute(
        "insert into event_batches (tx, at, kind, ids, began_ids, job_ids, attempts, epochs, "
        f"host_ids, queues, projects, messages) select {tx}::xid8, now(), '{kind}', "
        "array[nextval('events_id_seq')], array[null::bigint], array['j'], array[1], array[1], "
        "array['h'], array['q'], array['p'], array['']".encode()
    )


def test_no_server_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        migrate("host=127.0.0.1 port=1 dbname=x connect_timeout=2")


async def test_a_store_does_not_open_on_an_old_schema(pg_database: str) -> None:
    with pytest.raises(Conflict, match="holdfast db migrate"):
        await PostgresStore(pg_database).open()


def test_checks_list_what_the_enums_hold(pg_database: str) -> None:
    migrate(pg_database)
    with psycopg.connect(pg_database) as conn:
        rows = conn.execute(
            "select conname, pg_get_constraintdef(oid) from pg_constraint where contype = 'c'"
        ).fetchall()
    checks = dict(rows)
    for name, enum in ENUMS.items():
        words = " ".join(re.findall(r"'([^']*)'", checks[name]))
        assert set(re.findall(r"\w+", words)) == {member.value for member in enum}, name


def test_checks_of_hot_tables_are_read_in_no_time(pg_database: str) -> None:
    # PostgreSQL reads and plans each anew for each statement, and a list of constants one by one.
    migrate(pg_database)
    with psycopg.connect(pg_database) as conn:
        checks = conn.execute(
            "select conrelid::regclass::text, pg_get_constraintdef(oid) from pg_constraint "
            "where contype = 'c' and conrelid::regclass::text in ('jobs', 'tasks', 'attempts')"
        ).fetchall()
    assert max(Counter(table for table, _ in checks).values()) <= 6
    assert not [text for _, text in checks if "ARRAY[" in text]


def test_queries_are_well_formed() -> None:
    assert "reserve_jobs" in load_queries()
    assert parse_queries("-- name: a\n-- why\nselect 1;\n-- name: b\nselect 2", "x") == {
        "a": b"select 1",
        "b": b"select 2",
    }
    for rotten in (
        "select 1",
        "-- name: a\n-- nothing",
        "-- name: a\nselect 1;\n-- name: a\nselect 2",
    ):
        with pytest.raises(ValueError, match="x:"):
            parse_queries(rotten, "x")
