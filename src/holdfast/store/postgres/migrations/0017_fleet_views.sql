-- What dashboards read, under the names of existing deployments. Ages are in seconds.
create view orchestrator_status as
select s.queued, s.spawning, s.active, s.terminating, s.total,
       case when s.failed > 0 then 'degraded' when s.queued > 0 and s.active = 0 then 'waiting' else 'ok' end as health
from (
  select (select count(*) from jobs where state = 'queued') as queued,
         count(*) filter (where h.state in ('spawning', 'preflight')) as spawning,
         count(*) filter (where h.state = 'active') as active,
         count(*) filter (where h.state = 'draining' or i.state = 'ending') as terminating,
         count(*) filter (where h.state <> 'terminated' or i.state <> 'gone') as total,
         count(*) filter (where h.state = 'error' or (b.flagged_dead_at is not null and h.state <> 'terminated')) as failed
  from hosts h join heartbeats b on b.host_id = h.id left join instances i on i.host_id = h.id
) s;

create view active_workers_health as
select h.name as host, extract(epoch from clock_timestamp() - b.heartbeat_at)::double precision as heartbeat_age,
       (select min(t.job_id) from tasks t where t.host_id = h.id and t.state in ('reserved', 'running', 'preempting')) as task,
       g.used as vram_used, g.total as vram_total,
       extract(epoch from clock_timestamp() - r.at)::double precision as vram_age,
       case when b.flagged_dead_at is not null then 'dead'
            when clock_timestamp() - b.heartbeat_at > interval '300 seconds' then 'silent'
            when clock_timestamp() - r.at > interval '120 seconds' then 'stale telemetry'
            else 'ok' end as verdict
from hosts h join heartbeats b on b.host_id = h.id
left join host_telemetry r on r.host_id = h.id
left join lateral (
  select sum((x->>'memory_used_bytes')::bigint)::bigint as used, sum((x->>'memory_total_bytes')::bigint)::bigint as total
  from jsonb_array_elements(r.gpus) x
) g on true
where h.state = 'active';

-- From the attempts that are kept (`history_days`); a gang counts on each of its hosts.
create view worker_performance as
select h.name as host, coalesce(d.done, 0) as done, coalesce(d.failed, 0) as failed,
       d.done::double precision / nullif(d.done + d.failed, 0) as success_rate, d.mean_seconds,
       extract(epoch from clock_timestamp() - h.registered_at)::double precision as uptime
from hosts h left join (
  select x.host_id, count(*) filter (where a.outcome = 'succeeded') as done,
         count(*) filter (where a.outcome <> 'succeeded' and a.cause is not null) as failed,
         avg(extract(epoch from a.ended_at - a.started_at))::double precision as mean_seconds
  from attempts a cross join lateral (select distinct unnest(a.host_ids) as host_id) x
  where a.state = 'ended' and a.started_at is not null
  group by x.host_id
) d on d.host_id = h.id
where h.state <> 'terminated';
