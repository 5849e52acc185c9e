"""The raw limit of admitting gangs: the rows that must be there afterwards, written in batches by
one statement each."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psycopg

BATCH = 500
_MAKE = """
drop table if exists raw_job, raw_task, raw_event;
create table raw_job (
    id bigint primary key, state smallint not null default 0, tasks integer not null, priority smallint not null default 50
) with (fillfactor = 70);
create index raw_job_queued on raw_job (priority desc, id) where state = 0;
create table raw_task (job_id bigint not null, rank integer not null, host_id integer not null, state smallint not null default 1,
    primary key (job_id, rank));
create index raw_task_host on raw_task (host_id);
create table raw_event (id bigserial primary key, at timestamptz not null default clock_timestamp(), job_id bigint not null, message text not null);
"""
_STEP = """
with next as (
    select id, tasks from raw_job where state = 0 order by priority desc, id limit %s for update skip locked
), moved as (
    update raw_job j set state = 1 from next n where j.id = n.id returning j.id, n.tasks
), placed as (
    insert into raw_task (job_id, rank, host_id) select m.id, r, (m.id + r) %% %s from moved m, generate_series(0, m.tasks - 1) r
), logged as (
    insert into raw_event (job_id, message) select id, 'reserved' from moved
)
select count(*) from moved
"""


def measure_raw_gangs(dsn: str, sizes: Sequence[int], hosts: int) -> float:
    """Jobs per second, one connection, until all of `sizes` have their tasks' rows and an event."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_MAKE.encode())
        connection.execute(
            b"insert into raw_job (id, tasks) select * from unnest(%s::bigint[], %s::integer[])",
            (list(range(1, len(sizes) + 1)), list(sizes)),
        )
        connection.execute(b"vacuum analyze raw_job")
        done = 0
        started = time.monotonic()
        while row := connection.execute(_STEP.encode(), (BATCH, hosts)).fetchone():
            if not row[0]:
                break
            done += row[0]
        seconds = time.monotonic() - started
        connection.execute(b"drop table raw_job, raw_task, raw_event")
    if done != len(sizes):
        raise RuntimeError(f"placed {done} of {len(sizes)} jobs")
    return done / seconds
