"""The schema: made once in an empty database, and later migrations applied once, in order, under a lock;
refused when they do not fit. And the schema says what the code says."""

from __future__ import annotations

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
from holdfast.store.postgres.connection.migrate import Migration, migrate, read_status
from holdfast.store.postgres.connection.queries import (
    load_queries,
    order_schema,
    parse_queries,
    read_files,
)
from holdfast.store.postgres.store import PostgresStore
from tests.store.pg_fixture import PgServer
from tests.waits import stretch

ENUMS = {
    "jobs_state_check": JobState, "jobs_cause_check": Cause, "jobs_drain_cause_check": Cause,
    "jobs_outcome_check": Outcome, "tasks_state_check": TaskState, "attempts_state_check": AttemptState,
    "attempts_outcome_check": Outcome, "attempts_cause_check": Cause, "attempts_charged_to_check": Budget,
    "hosts_state_check": HostState,
}  # fmt: skip


LATER = Migration(2, "later", "create table later (id int)")


def test_migrating_twice_makes_the_tables_once(pg_database: str) -> None:
    assert read_status(pg_database)[:3] == (0, [], ["0001_schema"])
    assert migrate(pg_database) == ["0001_schema"]
    assert migrate(pg_database) == []
    assert read_status(pg_database)[:3] == (1, ["0001_schema"], [])
    with psycopg.connect(pg_database) as conn:
        queues = dict(conn.execute("select name, settings from queues").fetchall())
    assert queues == BUILTIN_QUEUES


def test_a_later_migration_is_applied_once_and_a_new_database_begins_with_it(
    pg_database: str, pg_server: PgServer
) -> None:
    migrate(pg_database)
    assert migrate(pg_database, [LATER]) == ["0002_later"]
    assert migrate(pg_database, [LATER]) == []
    name = pg_server.create_database()
    new = pg_server.dsn_of(name)
    assert migrate(new, [LATER]) == ["0002_schema"], "the files of `sql/` hold its change already"
    assert migrate(new, [LATER]) == []
    after = Migration(3, "after", "create table after (id int)")
    assert migrate(new, [LATER, after]) == ["0003_after"]
    pg_server.drop_database(name)


def test_two_migrating_at_once_take_turns(pg_database: str) -> None:
    done: list[list[str]] = []
    threads = [threading.Thread(target=lambda: done.append(migrate(pg_database))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(stretch(30))
    assert sorted(map(len, done)) == [0, 0, 1]


async def test_a_newer_schema_is_refused_with_a_sentence(pg_database: str) -> None:
    migrate(pg_database)
    migrate(pg_database, [LATER])
    await expect_refusal(pg_database, "newer Holdfast", "schema_newer")


@pytest.mark.parametrize(
    "made",
    [
        "update schema_migrations set name = 'spine'; insert into schema_migrations"
        " select n, 'another', '' from generate_series(2, 60) n",
        "update schema_migrations set checksum = 'another'",
    ],
    ids=["numbered_migrations", "other_tables"],
)
async def test_the_tables_of_a_development_version_are_refused_with_what_to_do(
    pg_database: str, made: str
) -> None:
    migrate(pg_database)
    with psycopg.connect(pg_database, autocommit=True) as conn:
        conn.execute(made.encode())
    words = r"development version.*make a new database, or give `holdfast up` a new folder"
    await expect_refusal(pg_database, words, "schema_unreleased")


async def expect_refusal(dsn: str, words: str, code: str) -> None:
    """Check that a migration, a look and a store all refuse the database for the same reason."""
    for refused in (lambda: migrate(dsn), lambda: read_status(dsn)):
        with pytest.raises(Conflict, match=words) as caught:
            refused()
        assert caught.value.code == code
    with pytest.raises(Conflict, match=words) as caught:
        await PostgresStore(dsn).open()
    assert caught.value.code == code


def test_a_changed_migration_is_refused(pg_database: str) -> None:
    migrate(pg_database)
    migrate(pg_database, [LATER])
    with pytest.raises(Conflict, match="must never change"):
        migrate(pg_database, [LATER._replace(sql=LATER.sql + "\n-- a thought")])


def test_a_failing_migration_leaves_nothing_behind(pg_database: str) -> None:
    migrate(pg_database)
    unwritten = Migration(
        2, "unwritten", "create table half (id int); drop table schema_migrations"
    )
    with pytest.raises(psycopg.errors.UndefinedTable):
        migrate(pg_database, [unwritten])
    with psycopg.connect(pg_database) as conn:
        assert conn.execute("select to_regclass('half')").fetchone() == (None,)
    assert read_status(pg_database).version == 1


def test_a_schema_that_fails_leaves_nothing_behind(pg_database: str) -> None:
    with psycopg.connect(pg_database, autocommit=True) as conn:
        conn.execute("create table host_performance (id int)")  # one of the last to be made
        with pytest.raises(psycopg.errors.DuplicateTable):
            migrate(pg_database)
        count = conn.execute("select count(*) from pg_tables where schemaname = 'public'")
        assert count.fetchone() == (1,)


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
    for rotten in ("-- name: a\n-- nothing", "-- name: a\nselect 1;\n-- name: a\nselect 2"):
        with pytest.raises(ValueError, match="x:"):
            parse_queries(rotten, "x")


def test_tables_are_made_after_those_that_they_need() -> None:
    files = {
        "a": "-- A.\n-- after: b\ncreate table a (n int); -- why\n-- name: read_a\nselect 1",
        "b": "create table b ();",
        "c": "-- name: read_c\nselect 1",
    }
    assert order_schema(files) == "create table b ();\ncreate table a (n int);"
    for rotten in ("select 1", "-- after: nothing", "-- after: x"):
        with pytest.raises(ValueError, match=r"x|cycle"):
            order_schema({**files, "x": rotten})


def test_a_file_makes_the_one_table_that_it_is_named_for() -> None:
    made = r"^create (?:unlogged )?(?:table|view) (\w+)"
    for name, text in read_files().items():
        top = text.split("-- name:")[0]
        found = re.findall(made, top, re.MULTILINE)
        wanted = {"transactions": [], "statistics": [], "event_batches": [name, "batched_events"]}
        assert found == wanted.get(name, [name]), name
        assert top.startswith("-- "), f"{name}: say what it holds"
