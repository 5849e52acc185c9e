"""The columns of jobs, tasks and attempts, each in one place.

A new column is a migration, a field in `core.records` (or, hidden from readers, in `moves.rows`), and a
line here. The named queries say what they need of a table, and are expanded once, when they are
loaded:

    {columns:task:t}              t.job_id, t.rank, …              the fields of `TaskRecord`
    {columns:task_row:t}          t.job_id, t.rank, …              the fields of `TaskRow`
    {columns:job:j but step beat_at}                               all but some
    {recordset:task}              job_id text, rank integer, …     the key, and what every move writes
    {assign:task}                 state = x.state, …
    {merge:attempt:a}             rule = coalesce(x.rule, a.rule), …    null leaves a column
    {recordset:task_place}, {assign:task_place}                    what a move of its place writes too
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from holdfast.core.records import AttemptRecord, JobRecord, TaskRecord
from holdfast.moves.rows import JobRow, TaskRow


class Writer(Enum):
    """What writes a column."""

    NONE = "the row's creation, or a statement of its own"
    KEY = "nothing: it finds the row"
    MOVE = "every move"
    PLACE = "a move that gives a member another place, or takes it"


_NONE, _KEY, _MOVE, _PLACE = Writer

COLUMNS: Mapping[str, Mapping[str, tuple[str, Writer]]] = {
    "jobs": {
        "id": ("text", _KEY),
        "name": ("text", _NONE),
        "project": ("text", _NONE),
        "queue": ("text", _NONE),
        "priority": ("smallint", _NONE),
        "state": ("text", _MOVE),
        "reason": ("text", _MOVE),
        "tasks": ("integer", _NONE),
        "gpus": ("integer", _NONE),
        "cpu_slots": ("integer", _NONE),
        "memory_bytes": ("bigint", _NONE),
        "labels": ("jsonb", _NONE),
        "spec": ("jsonb", _NONE),
        "epoch": ("bigint", _MOVE),
        "attempts": ("integer", _MOVE),
        "retries_charged": ("integer", _MOVE),
        "watchdog_charged": ("integer", _MOVE),
        "infra_charged": ("integer", _MOVE),
        "avoid_hosts": ("text[]", _MOVE),
        "barred_hosts": ("text[]", _MOVE),
        "wait_cause": ("text", _MOVE),
        "wait_until": ("timestamptz", _MOVE),
        "retry_at": ("timestamptz", _MOVE),
        "retry_events": ("boolean", _MOVE),
        "best_step": ("bigint", _MOVE),
        "no_progress": ("integer", _MOVE),
        "rank_charges": ("jsonb", _MOVE),
        "start_failures": ("integer", _MOVE),
        "drain_cause": ("text", _MOVE),
        "drain_reason": ("text", _MOVE),
        "drain_since": ("timestamptz", _MOVE),
        "drain_hard": ("boolean", _MOVE),
        "drain_operator_stop": ("boolean", _MOVE),
        "trigger_rank": ("integer", _MOVE),
        "outcome": ("text", _MOVE),
        "cause": ("text", _MOVE),
        "exit_code": ("integer", _MOVE),
        "step": ("bigint", _MOVE),
        "total": ("bigint", _MOVE),
        "beat_at": ("timestamptz", _MOVE),
        "created_at": ("timestamptz", _NONE),
        "queued_at": ("timestamptz", _MOVE),
        "started_at": ("timestamptz", _MOVE),
        "ended_at": ("timestamptz", _MOVE),
        "revision": ("bigint", _MOVE),
    },
    "tasks": {
        "job_id": ("text", _KEY),
        "rank": ("integer", _KEY),
        "epoch": ("bigint", _PLACE),
        "attempt": ("integer", _NONE),
        "state": ("text", _MOVE),
        "queue": ("text", _NONE),
        "gpus": ("integer", _NONE),
        "cpu_slots": ("integer", _NONE),
        "memory_bytes": ("bigint", _NONE),
        "host_id": ("text", _PLACE),
        "incarnation": ("text", _PLACE),
        "devices": ("integer[]", _PLACE),
        "lease_ttl_seconds": ("double precision", _PLACE),
        "lease_until": ("timestamptz", _MOVE),
        "offered_at": ("timestamptz", _MOVE),
        "claimed_at": ("timestamptz", _MOVE),
        "barrier": ("boolean", _MOVE),
        "port": ("integer", _MOVE),
        "started_at": ("timestamptz", _MOVE),
        "ended_at": ("timestamptz", _MOVE),
        "step": ("bigint", _MOVE),
        "total": ("bigint", _MOVE),
        "beat_at": ("timestamptz", _MOVE),
        "section": ("text", _MOVE),
        "facts": ("jsonb", _MOVE),
        "replaced": ("integer", _PLACE),
        "reserved_at": ("timestamptz", _PLACE),
        "ready_at": ("timestamptz", _PLACE),
        "start_failures": ("integer", _PLACE),
        "stop_cause": ("text", _PLACE),
        "stop_reason": ("text", _PLACE),
        "stop_hard": ("boolean", _PLACE),
    },
    "attempts": {
        "job_id": ("text", _KEY),
        "number": ("integer", _KEY),
        "parent": ("integer", _NONE),
        "epoch": ("bigint", _NONE),
        "state": ("text", _MOVE),
        "outcome": ("text", _MOVE),
        "cause": ("text", _MOVE),
        "rule": ("text", _MOVE),
        "charged_to": ("text", _MOVE),
        "retry_count": ("integer", _NONE),
        "policy": ("jsonb", _MOVE),
        "next_at": ("timestamptz", _MOVE),
        "exit_code": ("integer", _MOVE),
        "reason": ("text", _MOVE),
        "host": ("text", _NONE),
        "host_ids": ("text[]", _NONE),
        "trigger_rank": ("integer", _MOVE),
        "members": ("jsonb", _MOVE),
        "step": ("bigint", _MOVE),
        "total": ("bigint", _MOVE),
        "reserved_at": ("timestamptz", _NONE),
        "started_at": ("timestamptz", _MOVE),
        "ended_at": ("timestamptz", _MOVE),
    },
}
"""Table → column → its SQL type, and what writes it."""

_READ = {
    "job": ("jobs", JobRecord),
    "job_row": ("jobs", JobRow),
    "task": ("tasks", TaskRecord),
    "task_row": ("tasks", TaskRow),
    "attempt": ("attempts", AttemptRecord),
}
_WRITTEN = {
    "job": ("jobs", {_MOVE}),
    "task": ("tasks", {_MOVE}),
    "task_place": ("tasks", {_MOVE, _PLACE}),
    "attempt": ("attempts", {_MOVE}),
}
_PLACEHOLDER = re.compile(
    r"\{(columns|recordset|assign|merge):(\w+)(?::(\w+))?(?: but ([\w ]+))?\}"
)


def expand_columns(statement: str) -> str:
    """Replace every placeholder of a statement. Raises ValueError for an unknown name."""
    return _PLACEHOLDER.sub(_expand, statement)


def _expand(match: re.Match[str]) -> str:
    kind, name, alias, left_out = match.groups()
    try:
        if kind == "columns":
            table, record = _READ[name]
            fields = [f for f in record.__struct_fields__ if f in COLUMNS[table]]
            for column in (left_out or "").split():
                fields.remove(column)
            return ", ".join(f"{alias}.{field}" for field in fields)
        table, writers = _WRITTEN[name]
    except (KeyError, ValueError):
        raise ValueError(f"{match[0]}: no such table, or no such column of it") from None
    columns = COLUMNS[table]
    written = [column for column, (_, writer) in columns.items() if writer in writers]
    if kind == "recordset":
        keys = [column for column, (_, writer) in columns.items() if writer is _KEY]
        return ", ".join(f"{column} {columns[column][0]}" for column in (*keys, *written))
    if kind == "merge":
        return ", ".join(f"{c} = coalesce(x.{c}, {alias}.{c})" for c in written)
    return ", ".join(f"{column} = x.{column}" for column in written)
