-- Each active host's health. Ages are in seconds.
-- after: hosts, heartbeats, tasks, host_telemetry

create view host_health as
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

-- name: read_host_health
select host, heartbeat_age, task, vram_used, vram_total, vram_age, verdict from host_health order by host;
