-- Load rows for a move and write its changes: one statement per table for any number of rows.

-- name: lock_jobs
-- The job's row lock guards all of its tasks; it is always taken in id order and before any task's row.
select {columns:job_row:j},
       coalesce((j.spec->>'supervised')::boolean, false) as supervised,
       j.array_id is not null or j.awaited and exists (select from job_dependencies w where w.parent = j.id) as awaited,
       j.array_id is not null and exists (select from arrays r where r.id = j.array_id and r.at_once is not null) as array_limited
from jobs j
where j.id = any(%(ids)s)
order by j.id
for update of j;

-- name: lock_job_ids
-- Locks a mixed batch in one order, before the fast path writes some of the jobs and the moves write the others.
select id from jobs where id = any(%(ids)s) order by id for update;

-- name: lock_tasks
-- A statement of its own after the jobs' locks, so that it reads the rows that the last holder of those locks wrote.
-- The tasks are locked too: offers and renewals write them without the job's lock.
select {columns:task_row:t}, (select h.name from hosts h where h.id = t.host_id) as host_name
from tasks t
where t.job_id = any(%(ids)s)
order by t.job_id, t.rank
for update of t;

-- name: write_jobs
update jobs j set
  {assign:job},
  place = case x.to_place when 'front' then -nextval('job_order') when 'back' then nextval('job_order') else j.place end
from jsonb_to_recordset(%(rows)s::jsonb) as x({recordset:job}, to_place text)
where j.id = any(%(ids)s) and j.id = x.id;

-- name: write_tasks
-- The rows were locked when they were loaded, so a beat that is written back is never older.
update tasks t set {assign:task}
from jsonb_to_recordset(%(rows)s::jsonb) as x({recordset:task})
where t.job_id = any(%(ids)s) and t.job_id = x.job_id and t.rank = x.rank;

-- name: rewrite_tasks
-- A member of a supervised job loses or gets its place: writes every column that can change.
update tasks t set {assign:task_place}
from jsonb_to_recordset(%(rows)s::jsonb) as x({recordset:task_place})
where t.job_id = any(%(ids)s) and t.job_id = x.job_id and t.rank = x.rank;

-- name: write_replacements
insert into replacements (job_id, rank, epoch, attempt, number, host_id, at)
select x.job_id, x.rank, x.epoch, x.attempt, x.number, x.host_id, %(now)s
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  job_id text, rank integer, epoch bigint, attempt integer, number integer, host_id text);

-- name: find_members
-- Members of supervised jobs that need a decision: the fallen, and replacements that have not started.
select t.job_id, t.rank, t.state <> 'reserved' as fallen,
       greatest(0, extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp()) - case when t.state = 'reserved' then t.reserved_at else t.ended_at end))
         ::double precision as seconds
from tasks t join jobs j on j.id = t.job_id
where j.state in ('reserved', 'running')
  and (t.state in ('failed', 'preempted') or (t.state = 'reserved' and t.replaced > 0))
order by t.state = 'reserved', t.job_id, t.rank -- members without a place come first
limit %(limit)s;

-- name: find_unoffered_members
select distinct t.job_id as id from tasks t join jobs j on j.id = t.job_id
where t.state = 'reserved' and t.replaced > 0 and t.offered_at is null and t.reserved_at <= %(before)s
  and j.state in ('reserved', 'running')
order by t.job_id;

-- name: clear_tasks
delete from tasks where job_id = any(%(ids)s);

-- name: write_attempts
update attempts a set {merge:attempt:a}
from jsonb_to_recordset(%(rows)s::jsonb) as x({recordset:attempt})
where a.job_id = any(%(ids)s) and a.job_id = x.job_id and a.number = x.number;

-- name: write_events
-- The recordset keeps the array's order, so ids follow the order the moves were made in.
insert into events (at, kind, job_id, attempt, epoch, rank, host_id, queue, project, message, data)
select %(now)s, x.kind, x.job_id, x.attempt, x.epoch, x.rank, x.host_id, x.queue, x.project, coalesce(x.message, ''),
       coalesce(x.data, '{}')
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  kind text, job_id text, attempt integer, epoch bigint, rank integer, host_id text, queue text, project text,
  message text, data jsonb);

-- name: read_now
select coalesce(%(now)s::timestamptz, clock_timestamp()) as now;

-- name: find_slow_drains
-- Drains whose tasks were told to stop before a time and have not confirmed it, and that are not forced yet.
select j.id from jobs j
where j.state = 'draining' and not j.drain_hard and j.drain_since <= %(before)s
  and exists (select from tasks t where t.job_id = j.id and t.state = 'preempting')
order by j.id;

-- name: tell_sections
-- Guarded as a report is (FENCE-1); written only where it changes by more than a second.
with told as (
  select g.*, case when g.seconds > 0 then coalesce(%(now)s::timestamptz, clock_timestamp()) + g.seconds * interval '1 second' end as until
  from unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[], %(seconds)s::double precision[]) as g(job_id, rank, epoch, seconds)
), locked as (
  select t.job_id, t.rank, n.until from told n join tasks t on t.job_id = n.job_id and t.rank = n.rank
  where t.job_id = any(%(jobs)s::text[]) and t.epoch = n.epoch and t.host_id = %(host)s and t.state = 'running'
    and ((t.section_until is null) <> (n.until is null) or abs(extract(epoch from t.section_until - n.until)) > 1)
  order by t.job_id, t.rank
  for no key update of t
)
update tasks t set section_until = l.until from locked l
where t.job_id = any(%(jobs)s::text[]) and t.job_id = l.job_id and t.rank = l.rank;

-- name: find_excuses
select g.job_id, g.rank, g.epoch, max(extract(epoch from t.section_until - n.at))::double precision as seconds
from unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[]) as g(job_id, rank, epoch)
cross join (select coalesce(%(now)s::timestamptz, clock_timestamp()) as at) n
join tasks t on t.job_id = g.job_id and t.rank <> g.rank and t.state = 'running' and t.section_until > n.at
where t.job_id = any(%(jobs)s::text[])
group by 1, 2, 3;
