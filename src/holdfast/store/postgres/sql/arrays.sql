-- Arrays: one submission, many jobs, one line of state. Lock order: an array, then its members.

create table arrays (
  id              text primary key,
  name            text not null,
  owner           text not null default '',
  project         text not null,
  queue           text not null,
  spec            jsonb not null, -- as it was submitted, without the values of secrets
  spec_hash       bytea not null,
  idempotency_key text,
  indices         text not null, -- as they were written, "0-99:2"
  size            integer not null check (size >= 1),
  at_once         integer check (at_once >= 1),    -- null: no limit
  held            text not null default '',        -- why no member may start yet
  lined           boolean not null default false,  -- members may wait in line
  awaited         boolean not null default false,  -- a job waits, or has waited, for the end of all members
  cancel_reason   text, -- while its members are being cancelled, as cancel_cause
  cancel_cause    text constraint arrays_cancel_cause_check check (cancel_cause in ('user_cancelled', 'dependency')),
  cancel_hard     boolean not null default false,
  created_at      timestamptz not null,
  constraint arrays_cancel_says_why check ((cancel_reason is null) = (cancel_cause is null))
);
create unique index arrays_idempotency on arrays (project, idempotency_key) where idempotency_key is not null;
create index arrays_lined on arrays (id) where lined;
create index arrays_cancelling on arrays (id) where cancel_reason is not null;
create index arrays_awaited on arrays (id) where awaited;

-- name: insert_array
insert into arrays (id, name, owner, project, queue, spec, spec_hash, idempotency_key, indices, size, at_once, held, lined, created_at)
values (%(id)s, %(name)s, %(owner)s, %(project)s, %(queue)s, %(spec)s::jsonb, decode(%(digest)s, 'hex'), %(key)s, %(indices)s, %(size)s,
        %(at_once)s, %(held)s, %(lined)s, %(now)s)
on conflict do nothing
returning id;

-- name: find_earlier_array
select id, encode(spec_hash, 'hex') as digest from arrays
where id = %(id)s or (project = %(project)s and idempotency_key = %(key)s);

-- name: list_arrays
-- Counts are index-only scans of the arrays that are shown.
select a.id, a.name, a.owner, a.project, a.queue, a.spec, a.indices, a.size, a.at_once, a.held, a.cancel_reason, a.created_at,
       c.counts, n.active, f.failed
from (
  select * from arrays a
  where (%(ids)s::text[] is null or a.id = any(%(ids)s))
    and (%(queues)s::text[] is null or a.queue = any(%(queues)s))
    and (%(projects)s::text[] is null or a.project = any(%(projects)s))
    and (%(owners)s::text[] is null or a.owner = any(%(owners)s))
    and (%(names)s::text[] is null or a.name = any(%(names)s))
    and (%(prefix)s::text is null or (a.id >= %(prefix)s and starts_with(a.id, %(prefix)s)))
    and (%(states)s::text[] is null or exists (
      select from jobs j where j.array_id = a.id and j.state = any(%(states)s)))
    and (%(before)s::text is null or a.id < %(before)s)
  order by a.id desc limit %(limit)s
) a cross join lateral (
  select coalesce(jsonb_object_agg(s.state, s.n), '{}') as counts
  from (select j.state, count(*) as n from jobs j where j.array_id = a.id group by 1) s
) c cross join lateral (
  select count(*) as active from jobs j
  where j.array_id = a.id and j.state in ('waiting', 'queued', 'reserved', 'running', 'draining')
    and (j.wait_cause is null or j.wait_cause not in ('array', 'parked'))
) n cross join lateral (
  select array(select j.array_index from jobs j where j.array_id = a.id and j.state = 'failed' order by 1 limit 1000) as failed
) f
order by a.id desc;

-- name: find_working_arrays
-- Those that are being cancelled, and those whose line may move: a few index probes for each.
select a.id from arrays a where a.cancel_reason is not null and (%(only)s::text is null or a.id = %(only)s)
union
select a.id from arrays a
where a.lined and a.held = '' and a.cancel_reason is null and (%(only)s::text is null or a.id = %(only)s)
  and (a.at_once is null or a.at_once > (select count(*) from (
    select from jobs j
    where j.array_id = a.id and j.state in ('waiting', 'queued', 'reserved', 'running', 'draining')
    and (j.wait_cause is null or j.wait_cause not in ('array', 'parked'))
    limit a.at_once) l))
order by id limit 100;

-- name: lock_array
select id, name, at_once, held, lined, cancel_reason, cancel_cause, cancel_hard from arrays where id = %(id)s for update;

-- name: line_array
-- Before one of its members is put in line.
update arrays set lined = true where id = %(id)s and at_once is not null;

-- name: clear_line
update arrays set lined = false where id = %(id)s;

-- name: cancel_array
update arrays a set cancel_reason = %(reason)s, cancel_cause = 'user_cancelled', held = '', cancel_hard = %(hard)s
where a.id = %(id)s
  and exists (select from jobs j where j.array_id = a.id and j.state in ('waiting', 'queued', 'reserved', 'running', 'draining'));

-- name: end_cancel
update arrays set cancel_reason = null, cancel_cause = null, cancel_hard = false, lined = false where id = %(id)s;

-- name: prune_arrays
delete from arrays a
where a.created_at < %(before)s and not a.awaited and not exists (select from jobs j where j.array_id = a.id);

-- name: await_arrays
update arrays a set awaited = true where id = any(%(ids)s) and not awaited;

-- name: read_ends_of_arrays
-- Those that have ended, and how many of their members ended how.
select a.id, c.counts from arrays a cross join lateral (
  select jsonb_object_agg(s.state, s.n) as counts
  from (select j.state, count(*) as n from jobs j where j.array_id = a.id group by 1) s
) c
where a.id = any(%(ids)s) and c.counts is not null
  and not c.counts ?| array['waiting', 'queued', 'reserved', 'running', 'draining'];

-- name: lock_dependent_arrays
select id, held <> '' and cancel_reason is null as held from arrays where id = any(%(ids)s) order by id for update;

-- name: free_arrays
update arrays set held = '' where id = any(%(ids)s);

-- name: break_arrays
update arrays a set held = '', cancel_reason = g.reason, cancel_cause = 'dependency'
from unnest(%(ids)s::text[], %(reasons)s::text[]) as g(id, reason) where a.id = g.id;

-- name: forget_parent_arrays
update arrays a set awaited = false
where a.id = any(%(ids)s) and not exists (select from job_dependencies d where d.parent = a.id);

-- name: find_over_arrays
-- Arrays whose history is over: every member has ended, and that is long ago (HISTORY-1).
select a.id from arrays a
where a.created_at < %(before)s and not a.awaited
  and not exists (select from jobs j where j.array_id = a.id and j.state in ('waiting', 'queued', 'reserved', 'running', 'draining'))
  and not exists (select from jobs j where j.array_id = a.id and (j.ended_at is null or j.ended_at >= %(before)s::timestamptz))
order by a.id limit %(limit)s;
