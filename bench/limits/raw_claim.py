"""The raw batch-100 claim loop: one statement completes the last batch and claims the next, on a
minimal table."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext

import psycopg

BATCH = 100
_MAKE = """
drop table if exists raw_claim;
create table raw_claim (
    id bigint primary key,
    state smallint not null default 0,
    priority smallint not null default 50,
    payload text not null default '["/bin/true"]'
) with (fillfactor = 70);
create index raw_claim_queued on raw_claim (priority desc, id) where state = 0;
insert into raw_claim (id) select generate_series(1, %d);
"""
_STEP = """
with done as (
    update raw_claim set state = 2 where id = any(%s)
), next as (
    select id from raw_claim where state = 0 order by priority desc, id limit %s for update skip locked
)
update raw_claim as r set state = 1 from next where r.id = next.id returning r.id, r.payload
"""


def measure_raw_claims(
    dsn: str, rows: int, counting: AbstractContextManager[None] | None = None
) -> float:
    """Claims per second, one connection, until `rows` rows are claimed and complete; the loop alone
    runs within `counting`."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute((_MAKE % rows).encode())
        connection.execute(b"vacuum analyze raw_claim")
        held: list[int] = []
        claimed = 0
        with counting or nullcontext():
            started = time.monotonic()
            while True:
                found = connection.execute(_STEP.encode(), (held, BATCH)).fetchall()
                held = [row[0] for row in found]
                claimed += len(held)
                if not held:
                    break
            seconds = time.monotonic() - started
        connection.execute(b"drop table raw_claim")
    if claimed != rows:
        raise RuntimeError(f"claimed {claimed} of {rows} rows")
    return rows / seconds
