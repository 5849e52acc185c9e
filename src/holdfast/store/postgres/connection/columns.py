"""The columns of jobs, tasks and attempts, each in one place.

A new column stands in its table's file of `sql/`, as a field in `core.records` (or, hidden from
readers, in `moves.rows`), and in a line here. Placeholders in the named queries are expanded once,
when they are loaded:

    {columns:task:t}              t.job_id, t.rank, …              the fields of `TaskRecord`
    {columns:task_row:t}          t.job_id, t.rank, …              the fields of `TaskRow`
    {columns:job:j but step beat_at}                              all but some
    {recordset:task}              job_id text, rank integer, …    the key, and the columns of every
                                                                  move
    {assign:task}                 state = x.state, …
    {merge:attempt:a}             rule = coalesce(x.rule, a.rule), …    null leaves a column
    {recordset:task_place}, {assign:task_place}                   and those of a change of place
    {candidate:c}                 c.id as job_id, c.epoch, …      a job as admission sees it
    {candidate:j but tasks gpus}                                  all but some, which a rank says
    {span:j}                      … as expected_seconds, … as kin how long a job is to take
"""

import re
from collections.abc import Mapping
from enum import Enum

from holdfast.core.records import AttemptRecord, JobRecord, TaskRecord
from holdfast.moves.rows import JobRow, TaskRow


class Writer(Enum):
    """The statements that write a column of a table."""

    NONE = "the row's creation, or a statement of its own"
    KEY = "nothing: it finds the row"
    MOVE = "every move"
    PLACE = "a move that gives a member another place, or takes it"


def _read_table(text: str) -> dict[str, tuple[str, Writer]]:
    """Read lines "writer: column type, column type, …"; a line may go on in the next."""
    found: dict[str, tuple[str, Writer]] = {}
    for writer, columns in re.findall(r"(\w+): ([^:]+?)\s*(?=\w+:|$)", text):
        for column in columns.split(","):
            name, kind = column.split(maxsplit=1)
            found[name] = (kind.strip(), Writer[writer.upper()])
    return found


COLUMNS: Mapping[str, Mapping[str, tuple[str, Writer]]] = {
    "jobs": _read_table("""
        key:   id text
        move:  state text, reason text, epoch bigint, attempts integer, retries_charged integer,
               watchdog_charged integer, infra_charged integer, avoid_hosts text[],
               barred_hosts text[], wait_cause text, wait_until timestamptz,
               retry_at timestamptz, retry_events boolean, best_step bigint,
               no_progress integer, rank_charges jsonb, start_failures integer,
               infra_in_row integer,
               drain_cause text, drain_reason text, drain_since timestamptz, drain_hard boolean,
               drain_notice_seconds double precision,
               drain_operator_stop boolean, trigger_rank integer, outcome text, cause text,
               exit_code integer, step bigint, total bigint, beat_at timestamptz,
               queued_at timestamptz, started_at timestamptz, ended_at timestamptz,
               revision bigint
        none:  name text, project text, queue text, priority smallint, tasks integer,
               gpus integer, cpu_slots integer, memory_bytes bigint, labels jsonb, spec jsonb,
               created_at timestamptz, owner text, origin_run text, origin_node integer,
               array_id text, array_index integer
    """),
    "tasks": _read_table("""
        key:   job_id text, rank integer
        move:  state text, lease_until timestamptz, offered_at timestamptz,
               claimed_at timestamptz, barrier boolean, port integer, started_at timestamptz,
               ended_at timestamptz, step bigint, total bigint, beat_at timestamptz,
               first_beat_at timestamptz, rate double precision, moved_at timestamptz,
               section text, nan_beats integer, facts jsonb
        place: epoch bigint, host_id text, incarnation text, devices integer[],
               lease_ttl_seconds double precision, replaced integer, reserved_at timestamptz,
               ready_at timestamptz, start_failures integer, stop_cause text, stop_reason text,
               stop_hard boolean
        none:  attempt integer, queue text, gpus integer, cpu_slots integer, memory_bytes bigint
    """),
    "attempts": _read_table("""
        key:   job_id text, number integer
        move:  state text, outcome text, cause text, rule text, charged_to text, policy jsonb,
               next_at timestamptz, exit_code integer, reason text, trigger_rank integer,
               members jsonb, step bigint, total bigint, started_at timestamptz,
               ended_at timestamptz
        none:  parent integer, epoch bigint, retry_count integer, host text, host_ids text[],
               road text, reserved_at timestamptz
    """),
}
"""Table → column → (SQL type, its writer)."""

_READ = {
    "job": ("jobs", JobRecord),
    "job_row": ("jobs", JobRow),
    "task": ("tasks", TaskRecord),
    "task_row": ("tasks", TaskRow),
    "attempt": ("attempts", AttemptRecord),
}
_WRITTEN = {
    "job": ("jobs", {Writer.MOVE}),
    "task": ("tasks", {Writer.MOVE}),
    "task_place": ("tasks", {Writer.MOVE, Writer.PLACE}),
    "attempt": ("attempts", {Writer.MOVE}),
}
_SHAPE = re.compile(r"\{(candidate|span):(\w+)(?: but ([\w ]+))?\}")
_PLACEHOLDER = re.compile(
    r"\{(columns|recordset|assign|merge):(\w+)(?::(\w+))?(?: but ([\w ]+))?\}"
)
_SPAN = {
    "time_limit_seconds": "replace(@.spec->>'time_limit_seconds', 'off', 'infinity')"
    "::double precision",
    "expected_seconds": "(@.spec->>'expected_seconds')::double precision",
    "kin": "case when @.spec ? 'executor' then '' when @.array_id is not null"
    " then 'array:' || @.array_id else coalesce(@.spec->>'name', '') end",
}
_SHAPES: Mapping[str, Mapping[str, str]] = {
    "span": _SPAN,
    "candidate": {
        "job_id": "@.id",
        "epoch": "@.epoch",
        "queue": "@.queue",
        "project": "@.project",
        "priority": "@.priority",
        "tasks": "@.tasks",
        "gpus": "@.gpus",
        "cpu_slots": "@.cpu_slots",
        "memory_bytes": "@.memory_bytes",
        "avoid_hosts": "@.avoid_hosts",
        "lease_ttl_seconds": "(@.spec->>'lease_ttl_seconds')::double precision",
        **_SPAN,
        "placement": "coalesce(@.spec->>'placement', 'pack')",
        "host_labels": "coalesce(@.spec->'host_labels', '{}')",
        "caches": "coalesce(@.spec->'caches', '[]')",
        "supervised": "coalesce((@.spec->>'supervised')::boolean, false)",
        "runtime": "case when @.spec->>'image' is null then ''"
        " else coalesce(@.spec->>'runtime', 'any') end",
        "waited_seconds": "greatest(0, extract(epoch from %(now)s::timestamptz - @.queued_at))"
        "::double precision",
    },
}
"""Fields of a job as a plan sees it, each computed of the jobs' row `@`: those of
`core.placement.types.Candidate` that any read of jobs fills, and how long a job is to take."""


def expand_columns(statement: str) -> str:
    """Replace every placeholder of a statement. Raises ValueError for an unknown name."""
    return _PLACEHOLDER.sub(_expand, _SHAPE.sub(_shape, statement))


def _shape(match: re.Match[str]) -> str:
    name, alias, left_out = match.groups()
    given = dict(_SHAPES[name])
    for field in (left_out or "").split():
        if given.pop(field, None) is None:
            raise ValueError(f"{match[0]}: no field {field}")
    return ", ".join(f"{words.replace('@', alias)} as {field}" for field, words in given.items())


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
        keys = [column for column, (_, writer) in columns.items() if writer is Writer.KEY]
        return ", ".join(f"{column} {columns[column][0]}" for column in (*keys, *written))
    if kind == "merge":
        return ", ".join(f"{c} = coalesce(x.{c}, {alias}.{c})" for c in written)
    return ", ".join(f"{column} = x.{column}" for column in written)
