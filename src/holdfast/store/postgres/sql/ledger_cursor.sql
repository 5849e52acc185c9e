-- How far the ledger is written, one row. What is before `at` has its names.

create table ledger_cursor (
  only_one     boolean primary key default true check (only_one),
  at           timestamptz not null, -- the start of a minute
  minutes_from timestamptz not null default 'epoch', -- earlier minutes are pruned, as are earlier hours
  hours_from   timestamptz not null default 'epoch'
);

-- name: begin_ledger
-- With the first minute that anything is known of.
insert into ledger_cursor (at)
select date_trunc('minute', min(since), 'UTC') from host_states having min(since) is not null
on conflict do nothing;

-- name: read_ledger_cursor
-- How long the oldest transaction has run that may still write an end or a reservation of an earlier moment: no minute is
-- closed before it is over. One that has written nothing for a minute has not begun to, and those of PostgreSQL itself
-- (autovacuum) write nothing of ours.
select c.at, c.minutes_from, c.hours_from, coalesce((
  select max(extract(epoch from clock_timestamp() - a.xact_start)) from pg_stat_activity a
  where a.datname = current_database() and a.pid <> pg_backend_pid() and a.xact_start is not null
    and a.backend_type = 'client backend'
    and (a.backend_xid is not null or a.xact_start > clock_timestamp() - interval '60 seconds')
), 0)::double precision as open_seconds
from ledger_cursor c;

-- name: move_ledger_cursor
update ledger_cursor set at = %(until)s where at = %(since)s;

-- name: allow_ledger_pauses
-- Between two statements of a span, rows of a hundred thousand leases are read or written down, which takes seconds
-- on a busy machine: longer than a transaction may pause elsewhere.
select set_config('idle_in_transaction_session_timeout', '60s', true);

-- name: note_ledger_pruned
update ledger_cursor set minutes_from = greatest(minutes_from, %(minutes)s), hours_from = greatest(hours_from, %(hours)s);
