-- The fleet in one row. Hosts of no pool are not the fleet's to count; they
-- do serve what is queued.
-- after: jobs, hosts, heartbeats, instances

create view fleet_status as
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

-- name: read_fleet_status
select queued, spawning, active, terminating, total, health from fleet_status;
