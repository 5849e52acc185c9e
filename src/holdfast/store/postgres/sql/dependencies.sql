-- Jobs that wait for the end of others. Small rows by (child, parent), gone when the wait is over.

-- name: find_parents
select id, name, ended_at is not null as ended from jobs where id = any(%(ids)s) order by id;

-- name: await_jobs
-- Waits for a transaction that ends one of them, so that the loop sees either the end or the dependant. In id order,
-- as every lock on jobs is taken.
with locked as (
  select id from jobs where id = any(%(ids)s) order by id for no key update
)
update jobs j set awaited = true from locked l where j.id = l.id and not j.awaited;

-- name: insert_edges
insert into job_dependencies (child, parent, wants)
select * from unnest(%(children)s::text[], %(parents)s::text[], %(wants)s::text[])
on conflict do nothing;

-- name: find_ended_parents
-- One look into a partial index, which is nearly always empty.
select id from jobs where awaited and ended_at is not null order by id limit %(limit)s;

-- name: find_edges
-- Read twice: once to learn which jobs to lock, and again under the locks.
select d.child, d.parent, d.wants, j.name from job_dependencies d join jobs j on j.id = d.parent
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

-- name: list_waits
select g.id as child, w.parent, w.wants, w.name, w.state, w.reason
from unnest(%(ids)s::text[]) as g(id) cross join lateral (
  select d.parent, d.wants, j.name, j.state, j.reason
  from job_dependencies d join jobs j on j.id = d.parent
  where d.child = g.id order by d.parent limit %(first)s
) w;

-- name: prune_dependencies
delete from job_dependencies where child = any(%(ids)s);
