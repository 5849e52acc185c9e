-- Jobs that wait for the end of others. Small rows by (child, parent), gone when the wait is over.

-- name: find_parents
-- Jobs and arrays. An array has ended when none of its members goes on.
select id, name, ended_at is not null as ended from jobs where id = any(%(ids)s)
union all
select a.id, a.name, not exists (
  select from jobs j where j.array_id = a.id and j.state in ('waiting', 'queued', 'reserved', 'running', 'draining'))
from arrays a where a.id = any(%(ids)s);

-- name: await_jobs
-- Waits for a transaction that ends one of them, so that the loop sees either the end or the dependant. In id order,
-- as every lock on jobs is taken.
with locked as (
  select id from jobs where id = any(%(ids)s) order by id for no key update
)
update jobs j set awaited = true from locked l where j.id = l.id and not j.awaited;

-- name: await_arrays
update arrays a set awaited = true where id = any(%(ids)s) and not awaited;

-- name: insert_edges
insert into job_dependencies (child, parent, wants)
select * from unnest(%(children)s::text[], %(parents)s::text[], %(wants)s::text[])
on conflict do nothing;

-- name: find_ended_parents
-- One look into a partial index, which is nearly always empty, and one for each array that is waited for.
select id from (
  (select id from jobs where awaited and state in ('succeeded', 'failed', 'cancelled') order by id limit %(limit)s)
  union all
  (select a.id from arrays a where a.awaited and a.cancel_reason is null and not exists (
     select from jobs j where j.array_id = a.id and j.state in ('waiting', 'queued', 'reserved', 'running', 'draining'))
   order by a.id limit %(limit)s)
) e limit %(limit)s;

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

-- name: find_edges
-- Read twice: once to learn which jobs to lock, and again under the locks.
select d.child, d.parent, d.wants, coalesce(j.name, a.name) as name
from job_dependencies d left join jobs j on j.id = d.parent left join arrays a on a.id = d.parent
where d.parent = any(%(parents)s) and (%(children)s::text[] is null or d.child = any(%(children)s))
order by d.parent, d.child
limit %(limit)s;

-- name: delete_edges
delete from job_dependencies d
using unnest(%(children)s::text[], %(parents)s::text[]) as g(child, parent)
where d.child = g.child and d.parent = g.parent;

-- name: delete_edges_of
delete from job_dependencies where child = any(%(children)s);

-- name: find_free
select g.id from unnest(%(ids)s::text[]) as g(id) where not exists (select from job_dependencies d where d.child = g.id);

-- name: forget_parents
-- No new dependant of an ended job waits, so nothing can come in between.
update jobs j set awaited = false
where j.id = any(%(ids)s) and j.ended_at is not null
  and not exists (select from job_dependencies d where d.parent = j.id);

-- name: forget_parent_arrays
update arrays a set awaited = false
where a.id = any(%(ids)s) and not exists (select from job_dependencies d where d.parent = a.id);

-- name: list_waits
-- A member waits for what its array waits for. `counts`: of a parent that is an array.
select g.id as child, w.parent, w.wants, w.name, coalesce(w.state, 'waiting') as state, w.counts
from unnest(%(ids)s::text[]) as g(id) left join jobs o on o.id = g.id cross join lateral (
  select d.parent, d.wants, coalesce(j.name, a.name) as name, j.state,
         case when j.id is null then (
           select coalesce(jsonb_object_agg(s.state, s.n), '{}')
           from (select m.state, count(*) as n from jobs m where m.array_id = a.id group by 1) s) end as counts
  from job_dependencies d left join jobs j on j.id = d.parent left join arrays a on a.id = d.parent
  where d.child in (g.id, o.array_id) and coalesce(j.id, a.id) is not null
  order by d.parent limit %(first)s
) w;

-- name: prune_dependencies
delete from job_dependencies where child = any(%(ids)s);
