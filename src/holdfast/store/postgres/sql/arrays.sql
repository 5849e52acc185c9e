-- Arrays: one submission, many jobs, one line of state. Lock order: an array, then its members.

-- name: insert_array
insert into arrays (id, name, owner, project, queue, spec, spec_hash, idempotency_key, indices, size, at_once, held, lined, created_at)
values (%(id)s, %(name)s, %(owner)s, %(project)s, %(queue)s, %(spec)s::jsonb, decode(%(digest)s, 'hex'), %(key)s, %(indices)s, %(size)s,
        %(at_once)s, %(held)s, %(lined)s, %(now)s)
on conflict do nothing
returning id;

-- name: find_earlier_array
select id, encode(spec_hash, 'hex') as digest from arrays
where id = %(id)s or (project = %(project)s and idempotency_key = %(key)s);

-- name: has_quotas
select exists (select from cluster where coalesce(settings->>'quota_jobs', settings->>'quota_gpus') is not null)
  or exists (select from projects where coalesce(settings->>'quota_jobs', settings->>'quota_gpus') is not null);

-- name: list_arrays
-- Counts are index-only scans of the arrays that are shown.
select a.id, a.name, a.owner, a.project, a.queue, a.spec, a.indices, a.size, a.at_once, a.held, a.cancel_reason, a.created_at,
       c.counts, n.active, f.failed
from (
  select * from arrays a
  where (%(ids)s::text[] is null or a.id = any(%(ids)s))
    and (%(queue)s::text is null or a.queue = %(queue)s)
    and (%(project)s::text is null or a.project = %(project)s)
    and (%(owner)s::text is null or a.owner = %(owner)s)
    and (%(name)s::text is null or a.name = %(name)s)
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

-- name: find_array_members
select array_index, id from jobs where array_id = %(id)s and array_index = any(%(indices)s);

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

-- name: count_active
-- A statement of its own after the array's lock, so that it sees what the lock's last holder released.
select count(*) as active from jobs j
where j.array_id = %(id)s and j.state in ('waiting', 'queued', 'reserved', 'running', 'draining')
    and (j.wait_cause is null or j.wait_cause not in ('array', 'parked'));

-- name: find_in_line
select id from jobs where array_id = %(id)s and wait_cause = 'array' order by array_index limit %(limit)s;

-- name: line_array
-- Before one of its members is put in line.
update arrays set lined = true where id = %(id)s and at_once is not null;

-- name: clear_line
update arrays set lined = false where id = %(id)s;

-- name: cancel_array
update arrays a set cancel_reason = %(reason)s, cancel_cause = 'user_cancelled', held = '', cancel_hard = %(hard)s
where a.id = %(id)s
  and exists (select from jobs j where j.array_id = a.id and j.state in ('waiting', 'queued', 'reserved', 'running', 'draining'));

-- name: find_uncancelled
select id from jobs
where array_id = %(id)s and state in ('waiting', 'queued', 'reserved', 'running', 'draining')
  and not (state = 'draining' and drain_cause = 'user_cancelled' and (drain_hard or not %(hard)s::boolean))
order by id limit %(limit)s;

-- name: end_cancel
update arrays set cancel_reason = null, cancel_cause = null, cancel_hard = false, lined = false where id = %(id)s;

-- name: find_failed
select id from jobs where array_id = %(id)s and state = 'failed' order by id;

-- name: prune_arrays
delete from arrays a
where a.created_at < %(before)s and not a.awaited and not exists (select from jobs j where j.array_id = a.id);
