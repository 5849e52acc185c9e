-- A job that waited in line and succeeded changes no column that an index has, so its row is written in place: no index
-- learns of the new version, and the log has only what differs.

-- The indexes that ask for a state, or for the time of an end, and those of queued jobs.
drop index jobs_live, jobs_unhappy, jobs_ended, jobs_preemptible, jobs_due, jobs_of_project, jobs_held, jobs_array_state,
  jobs_array_active, jobs_executors, jobs_awaited;

-- Room for the second version of each row. What has ended is one version, and its page takes new jobs.
alter table jobs set (fillfactor = 50);

-- The state, but null for what no index has to find by it: a plain job that is queued (`ready_jobs` has it) or has
-- succeeded. A statement that looks for jobs by their state asks for this column, and one that has found a job already,
-- for `state`.
alter table jobs add column indexed_state text generated always as (
  case when state = any ('{queued,succeeded}') and array_id is null and not awaited and not spec ? 'executor' then null
  else state end) stored;

create index jobs_live on jobs (queue, indexed_state) where indexed_state in ('reserved', 'running', 'draining');
create index jobs_unhappy on jobs (id) where indexed_state in ('failed', 'cancelled');
create index jobs_preemptible on jobs (priority) where preemptible and indexed_state in ('reserved', 'running', 'draining');
create index jobs_due on jobs (wait_cause, wait_until) where indexed_state = 'waiting';
create index jobs_held on jobs (project, id) where indexed_state = 'waiting' and wait_cause = 'retries_held';
create index jobs_waiting on jobs (project) where indexed_state = 'waiting';
create index jobs_array_state on jobs (array_id, indexed_state) where array_id is not null;
create index jobs_array_active on jobs (array_id)
  where array_id is not null and indexed_state in ('waiting', 'queued', 'reserved', 'running', 'draining')
    and (wait_cause is null or wait_cause not in ('array', 'parked'));
create index jobs_executors on jobs (indexed_state, id) where spec ? 'executor';
create index jobs_awaited on jobs (id) where awaited and indexed_state in ('succeeded', 'failed', 'cancelled');
-- The ranges of pages that have an old end: since PostgreSQL 16 such an index does not keep a row from its place.
create index jobs_ended on jobs using brin (ended_at) with (pages_per_range = 32, autosummarize = on);

-- The queued jobs of a project are found in the queue. A server of an older version writes no project there, so its
-- submissions fail until it is replaced.
create temporary table places on commit drop as
  select r.*, j.project from ready_jobs r join jobs j on j.id = r.job_id;
truncate ready_jobs;
alter table ready_jobs add column project text not null;
insert into ready_jobs (job_id, queue, priority, place, epoch, since, project)
  select job_id, queue, priority, place, epoch, since, project from places;
create index ready_jobs_of_project on ready_jobs (project, queue, priority desc, place);
analyze ready_jobs;

create or replace view orchestrator_status as
select s.queued, s.spawning, s.active, s.terminating, s.total,
       case when s.failed > 0 then 'degraded' when s.queued > 0 and s.serving = 0 then 'waiting' else 'ok' end as health
from (
  select (select count(*) from ready_jobs) as queued,
         count(*) filter (where h.pool <> '' and h.state in ('spawning', 'preflight')) as spawning,
         count(*) filter (where h.pool <> '' and h.state = 'active') as active,
         count(*) filter (where h.pool <> '' and (h.state = 'draining' or i.state = 'ending')) as terminating,
         count(*) filter (where h.pool <> '' and (h.state <> 'terminated' or i.state <> 'gone')) as total,
         count(*) filter (where h.state = 'active') as serving,
         count(*) filter (where h.state = 'error' or (b.flagged_dead_at is not null and h.state <> 'terminated')) as failed
  from hosts h join heartbeats b on b.host_id = h.id left join instances i on i.host_id = h.id
) s;
