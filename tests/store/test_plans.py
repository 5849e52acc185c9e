"""No plan of the hot path depends on luck: not on statistics, and not on the sizes of sets.

Each statement is explained as the hot path runs it (a generic plan, `KEEP_PLANS`), on tables that
were never analysed and on tables that were vacuumed while they were empty, the two states in which
the planner knows least.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast.moves.values import JobFilter
from holdfast.store.postgres.connection.queries import QUERIES
from holdfast.store.postgres.connection.session import KEEP_PLANS, Tx
from holdfast.store.postgres.store import PostgresStore
from tests.store.rig import OK, Rig

HOT = (
    "touch_hosts", "touch_and_renew", "renew_tasks", "finish_jobs", "find_ended", "offer_tasks", "claim_tasks",
    "read_offered_jobs", "read_offered_secrets", "read_offered_seats", "read_preempts",
    "lock_jobs", "lock_job_ids", "lock_tasks", "write_jobs", "write_tasks", "write_attempts",
    "write_events", "clear_tasks", "reserve_jobs", "read_host_state", "move_host", "put_faults",
    "lock_instance", "end_instance", "read_takes", "read_takable_specs",
    "insert_jobs", "lock_hosts", "rewrite_tasks",
)  # fmt: skip
PLANNED = ("read_candidates", "share_queues")
"""Statements of the hot path that are planned for their parameters."""
GROWING = frozenset((
    "jobs", "tasks", "attempts", "events", "event_batches", "hosts",
    "heartbeats", "job_secrets",
    "call_sets", "call_pages", "call_ready", "call_outputs", "call_waiting", "call_results",
    "call_charges", "call_failures",
))  # fmt: skip
CALLS = (
    "find_call_pages", "insert_call_pages", "insert_call_ready", "grow_call_set", "look_at_calls",
    "exchange_calls", "write_call_ends", "count_call_ends", "read_call_sets", "lock_call_sets",
    "read_call_charges", "put_call_charges", "read_call_results", "find_call_results",
    "list_call_failures", "find_call_outputs", "read_call_feeds", "find_left_batches", "lock_due_calls",
    "delete_call_waiting", "delete_call_ready", "lock_ready_of_set", "lock_waiting_of_set",
    "take_call_results", "delete_call_charges", "read_ready_call", "count_calls_ahead",
    "find_old_sets", "prune_call_pages", "prune_call_results",
)  # fmt: skip
"""Statements about calls, which run in the same way."""
DRIVER_KEEPS_BYTES = 4096
_PARAMETER = re.compile(r"%\((\w+)\)s")
Plan = dict[str, Any]


def explain(connection: psycopg.Connection[Any], statement: str) -> Plan:
    """Return the generic plan of a statement with the driver's placeholders."""
    numbers: dict[str, int] = {}
    text = _PARAMETER.sub(
        lambda m: f"${numbers.setdefault(m[1], len(numbers) + 1)}", statement
    ).replace("%%", "%")
    # By the simple protocol, because nothing is to be given for the parameters.
    found = connection.pgconn.exec_(f"explain (generic_plan, format json) {text}".encode())
    assert found.status == psycopg.pq.ExecStatus.TUPLES_OK, found.error_message.decode()
    answer: Plan = json.loads(found.get_value(0, 0) or b"")[0]["Plan"]
    return answer


def walk(plan: Plan) -> Iterator[Plan]:
    """Return every node of a plan."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from walk(child)


def find_faults(plan: Plan) -> list[str]:
    """Return what in a plan grows faster than the sets it works on."""
    faults = []
    for node in walk(plan):
        kind, table = node["Node Type"], node.get("Relation Name")
        if kind == "Nested Loop" and "Join Filter" in node:
            faults.append(f"a nested loop compares all with all: {node['Join Filter']}")
        whole = kind == "Seq Scan" or (kind.startswith("Index") and "Index Cond" not in node)
        if whole and table in GROWING:
            faults.append(f"all of {table} is read: {node.get('Index Name', kind)}")
        index = node.get("Index Name", "")
        if kind == "Bitmap Index Scan" and "Index Cond" not in node and index.startswith("jobs_"):
            faults.append(f"all jobs of a state are read: {index}")
    return faults


@pytest.mark.parametrize("state", ["never analysed", "vacuumed while empty"])
def test_no_plan_of_the_hot_path_depends_on_luck(pg_migrated: str, state: str) -> None:
    with psycopg.connect(pg_migrated, autocommit=True) as connection:
        if state == "vacuumed while empty":
            connection.execute("vacuum analyze")
        connection.execute(b"begin")
        connection.execute(KEEP_PLANS)
        asked = (*HOT, *CALLS)
        faults = {name: find_faults(explain(connection, QUERIES[name].decode())) for name in asked}
        connection.execute(b"rollback")
        for name in PLANNED:
            found = find_faults(explain(connection, QUERIES[name].decode()))
            faults[name] = [fault for fault in found if fault.startswith("a nested loop")]
    assert {name: found for name, found in faults.items() if found} == {}


def test_jobs_are_taken_by_keys_from_a_queue_that_was_empty_for_a_moment(pg_migrated: str) -> None:
    """Its indexes are large and it is thought to be empty, so to read a whole index seems to cost
    less than to look jobs up."""
    with psycopg.connect(pg_migrated, autocommit=True) as connection:
        connection.execute(
            "insert into jobs (id, name, project, queue, priority, state, tasks, gpus, cpu_slots, memory_bytes, spec,"
            " spec_hash, created_at, queued_at, place) "
            "select md5(n::text), 'job', 'default', 'cpu', 50, 'queued', 1, 0, 1, 0, '{}', '', now(), now(), n "
            "from generate_series(1, 60000) n"
        )
        connection.execute("delete from jobs")
        connection.execute("vacuum analyze")
        connection.execute(b"begin")
        connection.execute(KEEP_PLANS)
        plan = explain(connection, QUERIES["reserve_jobs"].decode())
    assert find_faults(plan) == []
    used = {node["Index Name"] for node in walk(plan) if "Index Name" in node}
    assert "jobs_pkey" in used
    assert not used & {"jobs_queued", "jobs_queued_of_project"}


@pytest.mark.parametrize("state", ["never analysed", "vacuumed while empty"])
def test_the_jobs_of_a_project_are_read_past_those_of_no_other(
    pg_migrated: str, state: str
) -> None:
    with psycopg.connect(pg_migrated, autocommit=True) as connection:
        if state == "vacuumed while empty":
            connection.execute("vacuum analyze")
        connection.execute("set enable_seqscan = off")  # an empty table is read whole
        plan = explain(connection, QUERIES["read_candidates_in_share"].decode())
    (read,) = [node for node in walk(plan) if node.get("Relation Name") == "jobs"]
    assert read["Index Name"] == "jobs_queued_of_project"
    assert "project" not in read["Filter"]


@pytest.mark.parametrize(
    ("states", "index"),
    [
        (["failed", "cancelled"], "jobs_unhappy"),
        (["running"], "jobs_live"),
        (["waiting"], "jobs_waiting"),
        (["queued"], "jobs_queued"),
    ],
)
async def test_a_list_by_state_passes_over_no_other_jobs(
    pg_migrated: str, monkeypatch: pytest.MonkeyPatch, states: list[str], index: str
) -> None:
    used = await _explain_list(pg_migrated, monkeypatch, JobFilter(states=tuple(states)))
    names = {node.get("Index Name", "") for node in used}
    assert any(name.startswith(index) for name in names), names


async def test_a_part_of_a_name_is_looked_for_without_the_rows(
    pg_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = await _explain_list(pg_migrated, monkeypatch, JobFilter(part="train", executors="hide"))
    assert [node["Node Type"] for node in used] == ["Limit", "Index Only Scan"]


async def _explain_list(dsn: str, monkeypatch: pytest.MonkeyPatch, filter: JobFilter) -> list[Plan]:
    """Return the parts of the plan by which jobs are listed."""
    asked: list[dict[str, Any]] = []
    rows = Tx.rows

    async def note(tx: Tx, statement: str, /, **params: Any) -> Any:
        asked.extend([params] if statement == "list_job_ids" else [])
        return await rows(tx, statement, **params)

    monkeypatch.setattr(Tx, "rows", note)
    store = PostgresStore(dsn)
    await store.open()
    await store.jobs.list_jobs(filter)
    await store.close()
    with psycopg.connect(dsn, cursor_factory=psycopg.ClientCursor) as connection:
        for way in ("seqscan", "bitmapscan"):  # empty tables are read whole
            connection.execute(f"set enable_{way} = off")
        statement = b"explain (format json) " + QUERIES["list_job_ids"]
        ((found,),) = connection.execute(statement, asked[0]).fetchall()
    return list(walk(found[0]["Plan"]))


def test_a_sample_of_a_hot_table_is_small(pg_migrated: str) -> None:
    """PostgreSQL samples 300 rows for each unit of the largest target of a table's columns."""
    with psycopg.connect(pg_migrated) as connection:
        columns = connection.execute(
            """select c.relname, a.attname, a.attstattarget, t.typcategory = 'A' or t.typname = 'jsonb' as wide
               from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_type t on t.oid = a.atttypid
               where a.attnum > 0 and not a.attisdropped
                 and c.oid::regclass::text in ('jobs', 'tasks', 'attempts', 'events', 'event_batches')"""
        ).fetchall()
    assert len({table for table, *_ in columns}) == 5
    targets = {
        (table, name): -1 if target is None else target for table, name, target, _ in columns
    }
    assert [at for at, target in targets.items() if not 0 <= target <= 20] == []
    assert [
        (table, name) for table, name, _, wide in columns if wide and targets[table, name]
    ] == []


def test_rows_that_are_locked_up_to_a_limit_are_read_once() -> None:
    """A plan may read `in (select … limit … for update)` again for each row, and with `skip locked`
    each time finds others."""
    inner = re.compile(
        rb"\bin \(\s*select\b(?:(?!\bselect\b|;).)*\blimit\b[^;()]*for update", re.DOTALL
    )
    assert inner.search(b"delete from a where id in (select id from a limit 2 for update)")
    assert [name for name, text in QUERIES.items() if inner.search(text)] == []


def test_jobs_that_are_being_reserved_are_left_out_by_a_hash(pg_migrated: str) -> None:
    with psycopg.connect(pg_migrated, autocommit=True) as connection:
        for name, table in (
            ("read_candidates", "jobs"),
            ("read_candidates_in_quota", "jobs"),
            ("read_candidates_in_share", "jobs"),
        ):
            plan = explain(connection, QUERIES[name].decode())
            (read,) = [node for node in walk(plan) if node.get("Relation Name") == table]
            assert "hashed SubPlan" in read["Filter"]


def test_the_driver_keeps_what_it_reads_of_each_statement() -> None:
    """psycopg reads a longer one anew at each call, for 0.1 ms."""
    assert {name for name, text in QUERIES.items() if len(text) > DRIVER_KEEPS_BYTES} == set()


def test_a_bad_plan_is_seen(pg_migrated: str) -> None:
    bad = "select j.id from jobs j join unnest(%(ids)s::text[]) as g(id) on g.id = j.id"
    with psycopg.connect(pg_migrated, autocommit=True) as connection:
        connection.execute("set enable_hashjoin = off; set enable_mergejoin = off")
        connection.execute("set enable_indexscan = off; set enable_bitmapscan = off")
        connection.execute("set enable_indexonlyscan = off")
        faults = find_faults(explain(connection, bad))
    assert [fault.split(":")[0] for fault in faults] == [
        "a nested loop compares all with all",
        "all of jobs is read",
    ]


async def test_ends_and_takes_ask_for_no_orders_of_the_leader(pg_migrated: str) -> None:
    """Such a sync is all that a host of short jobs sends, and each statement more is felt."""
    store = PostgresStore(pg_migrated, max_connections=1)
    await store.open()
    try:
        rig = Rig(store)
        await rig.host(slots=1)
        wanted = [await rig.submit(), await rig.submit()]
        first = await rig.sync(takes=True)
        keys = [offer.task.key for offer in first.offers]
        second = await rig.sync(ended=[(key, OK) for key in keys], takes=True)
        assert [o.task.key.job_id for o in (*first.offers, *second.offers)] == wanted
        run = {row["statement"] for row in await store.session.transact_hot(_list_prepared)}
    finally:
        await store.close()
    assert any("event_batches" in statement for statement in run), "statements are prepared"
    assert not any("o.barrier" in statement for statement in run), "read_offered_seats was asked"


async def _list_prepared(tx: Tx) -> list[dict[str, Any]]:
    cursor = await tx.conn.execute(b"select statement from pg_prepared_statements")
    return await cursor.fetchall()
