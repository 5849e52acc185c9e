-- Projects: their settings, what they use, and the kill switch of retries.

-- name: read_projects
select name, settings, created_at from projects order by name;

-- name: use_of_projects
-- Of the projects named, or of all that unfinished jobs name: how many there are, and what runs (QUOTA-2). What waits
-- its turn is counted over its index; GPUs are read of the live jobs' rows, which are few.
with pending as (
  select p.project, count(*) as jobs from (
    select j.project from jobs j where j.state = 'queued'
    union all
    select j.project from jobs j where j.state = 'waiting'
  ) p
  where %(names)s::text[] is null or p.project = any(%(names)s)
  group by p.project
), running as (
  select j.project, count(*) as jobs, sum(j.gpus::bigint * j.tasks)::bigint as gpus,
         coalesce(sum(j.cpu_slots::bigint * j.tasks) filter (where j.gpus = 0), 0)::bigint as cpu_slots from jobs j
  where j.state in ('reserved', 'running', 'draining') and (%(names)s::text[] is null or j.project = any(%(names)s))
  group by j.project
)
select project, coalesce(p.jobs, 0) + coalesce(r.jobs, 0) as jobs, coalesce(r.jobs, 0) as running_jobs,
       coalesce(r.gpus, 0) as running_gpus, coalesce(r.cpu_slots, 0) as running_cpu_slots
from pending p full join running r using (project);

-- name: running_of_projects
-- As above, for admission: nothing but what runs.
select j.project, count(*) as running_jobs, sum(j.gpus::bigint * j.tasks)::bigint as running_gpus,
       coalesce(sum(j.cpu_slots::bigint * j.tasks) filter (where j.gpus = 0), 0)::bigint as running_cpu_slots
from jobs j
where j.state in ('reserved', 'running', 'draining') and (%(names)s::text[] is null or j.project = any(%(names)s))
group by j.project;

-- name: unfinished_of_project
-- For a hard quota (QUOTA-1): all unfinished jobs, and the GPUs they ask for.
select count(*) as jobs, coalesce(sum(u.gpus), 0)::bigint as gpus from (
  select j.id, j.gpus::bigint * j.tasks as gpus from jobs j where j.state = 'waiting' and j.project = %(name)s
  union all
  select j.id, j.gpus::bigint * j.tasks from jobs j where j.state = 'queued' and j.project = %(name)s
  union all
  select j.id, j.gpus::bigint * j.tasks from jobs j
  where j.state in ('reserved', 'running', 'draining') and j.project = %(name)s
) u
where u.id <> all(%(but)s::text[]);

-- name: list_queued_projects
-- Every project that has a queued job, one look into the index each: the number of jobs does not matter.
with recursive found(name) as (
  (select j.project from jobs j where j.state = 'queued' order by j.project limit 1)
  union all
  select (select j.project from jobs j where j.state = 'queued' and j.project > f.name order by j.project limit 1)
  from found f where f.name is not null
)
select name from found where name is not null;

-- name: read_quota_layers
-- The cluster's settings, and those of the projects named that limit anything.
select c.settings as cluster, (
  select coalesce(jsonb_object_agg(p.name, p.settings), '{}') from projects p where p.name = any(%(names)s)
) as projects
from cluster c;

-- name: lock_quota
-- The project's lock, which needs no row: a transaction that adds to the counted jobs takes it, counts, and holds it
-- until it commits. Always in one order, and after all other locks but those of existing jobs' rows.
select pg_advisory_xact_lock(1903128161, n.key) from (
  select distinct hashtext(name) as key from unnest(%(names)s::text[]) as g(name) order by key
) n;

-- name: lock_project
select name, settings, created_at from projects where name = %(name)s for update;

-- name: put_project
insert into projects (name, settings, created_at) values (%(name)s, %(changes)s::jsonb, %(now)s)
on conflict (name) do update set settings = (projects.settings || %(changes)s::jsonb) - %(unset)s::text[]
returning name;

-- name: delete_project
delete from projects where name = %(name)s;

-- name: project_in_use
select exists (select from jobs where project = %(name)s and state = 'queued')
    or exists (select from jobs where project = %(name)s and state = 'waiting')
    or exists (select from jobs where project = %(name)s and state in ('reserved', 'running', 'draining'));

-- name: count_waiting
select project, wait_cause, count(*) from jobs where state = 'waiting' group by 1, 2;

-- name: look_due
-- Asked at every tick: is there work? For held retries only their projects are looked up, with one index probe each, so
-- that a thousand held retries cost as much as one.
-- The statement's time is a value the indexes can be searched by; the clock's is not.
with recursive held(project) as (
  (select j.project from jobs j where j.state = 'waiting' and j.wait_cause = 'retries_held' order by j.project, j.id limit 1)
  union all
  select (select j.project from jobs j where j.state = 'waiting' and j.wait_cause = 'retries_held' and j.project > h.project
          order by j.project, j.id limit 1)
  from held h where h.project is not null
)
select c.settings as cluster,
       exists (select from jobs where state = 'waiting' and wait_cause = 'start_time'
               and wait_until <= coalesce(%(now)s::timestamptz, statement_timestamp())) as starts,
       exists (select from jobs where state = 'waiting' and wait_cause = 'back_off'
               and wait_until <= coalesce(%(now)s::timestamptz, statement_timestamp())) as retries,
       array(select project from held where project is not null) as held,
       array(select name from projects where settings @> '{"retries_enabled": false}') as off
from cluster c;

-- name: share_switch
-- RETRY-6: a change of a kill switch, a project's too, raises the revision in this row; so it waits for a dispatch that
-- has read the row, or the dispatch waits for it.
select settings from cluster for share;

-- name: list_switched_off
-- A statement of its own after share_switch, so that it reads the change that was waited for.
select name from projects where settings @> '{"retries_enabled": false}';

-- name: find_due_starts
-- Jobs whose start time has come, without the rows that another leader is releasing.
select id from jobs
where state = 'waiting' and wait_cause = 'start_time' and wait_until <= %(now)s
order by wait_until, id limit %(limit)s
for update skip locked;

-- name: find_due_held
-- Due retries under a kill switch; `everywhere`: the cluster's or its environment's.
select id from jobs
where state = 'waiting' and wait_cause = 'back_off' and wait_until <= %(now)s
  and (%(everywhere)s or project = any(%(off)s))
order by wait_until, id limit %(limit)s
for update skip locked;

-- name: find_resumed
-- Held retries that no kill switch holds any more.
select id from jobs
where state = 'waiting' and wait_cause = 'retries_held' and project = any(%(projects)s)
order by project, id limit %(limit)s
for update skip locked;

-- name: find_due_retries
-- Retries to dispatch, without the rows that another leader is dispatching.
select id from jobs
where state = 'waiting' and wait_cause = 'back_off' and wait_until <= %(now)s and project <> all(%(off)s)
order by wait_until, id limit %(limit)s
for update skip locked;

-- name: retries_left
select exists (
  select from jobs where state = 'waiting' and wait_cause = 'back_off' and wait_until <= %(now)s and project <> all(%(off)s)
);
