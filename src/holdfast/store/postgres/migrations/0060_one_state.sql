-- A job says in one column in which state it is, and a queued job is found by it, as any other.
drop view orchestrator_status;
drop table ready_jobs;
alter table jobs drop column indexed_state; -- with the indexes that asked for it
alter table jobs set (fillfactor = 85);

-- Exactly the ORDER BY of admission: the depth of a queue then costs nothing. It counts jobs, and finds the oldest, alone.
create index jobs_queued on jobs (queue, priority desc, place) include (queued_at) where state = 'queued';
create index jobs_queued_of_project on jobs (project, queue, priority desc, place) where state = 'queued';
create index jobs_live on jobs (queue, state) where state in ('reserved', 'running', 'draining');
create index jobs_unhappy on jobs (id) where state in ('failed', 'cancelled');
create index jobs_preemptible on jobs (priority) where preemptible and state in ('reserved', 'running', 'draining');
create index jobs_due on jobs (wait_cause, wait_until) where state = 'waiting';
create index jobs_held on jobs (project, id) where state = 'waiting' and wait_cause = 'retries_held';
create index jobs_waiting on jobs (project) where state = 'waiting';
create index jobs_array_state on jobs (array_id, state) where array_id is not null;
create index jobs_array_active on jobs (array_id)
  where array_id is not null and state in ('waiting', 'queued', 'reserved', 'running', 'draining')
    and (wait_cause is null or wait_cause not in ('array', 'parked'));
create index jobs_executors on jobs (state, id) where spec ? 'executor';
create index jobs_awaited on jobs (id) where awaited and state in ('succeeded', 'failed', 'cancelled');

create view orchestrator_status as
select s.queued, s.spawning, s.active, s.terminating, s.total,
       case when s.failed > 0 then 'degraded' when s.queued > 0 and s.serving = 0 then 'waiting' else 'ok' end as health
from (
  select (select count(*) from jobs where state = 'queued') as queued,
         count(*) filter (where h.pool <> '' and h.state in ('spawning', 'preflight')) as spawning,
         count(*) filter (where h.pool <> '' and h.state = 'active') as active,
         count(*) filter (where h.pool <> '' and (h.state = 'draining' or i.state = 'ending')) as terminating,
         count(*) filter (where h.pool <> '' and (h.state <> 'terminated' or i.state <> 'gone')) as total,
         count(*) filter (where h.state = 'active') as serving,
         count(*) filter (where h.state = 'error' or (b.flagged_dead_at is not null and h.state <> 'terminated')) as failed
  from hosts h join heartbeats b on b.host_id = h.id left join instances i on i.host_id = h.id
) s;
