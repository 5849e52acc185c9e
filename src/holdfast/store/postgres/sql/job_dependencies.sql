-- Jobs that wait for the end of others (`submit --after`): one row for each end that is still waited for. Rows go when their
-- wait is over, so that the table stays small.

create table job_dependencies (
  child  text not null,
  parent text not null, -- a job or an array
  wants  text not null constraint job_dependencies_wants_check check (wants in ('ok', 'any', 'failed')),
  primary key (child, parent)
);
create index job_dependencies_parent on job_dependencies (parent);

-- name: insert_edges
insert into job_dependencies (child, parent, wants)
select * from unnest(%(children)s::text[], %(parents)s::text[], %(wants)s::text[])
on conflict do nothing;

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
