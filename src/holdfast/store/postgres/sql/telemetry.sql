-- name: write_latest
-- A reading is told with every sync until the next one is made, each time a little older: only one that is later than the
-- last by a second is new. Returns the hosts whose reading is.
insert into host_telemetry (host_id, at, gpus)
select g.host_id, g.at, g.gpus::jsonb
from unnest(%(hosts)s::text[], %(ats)s::timestamptz[], %(gpus)s::text[]) as g(host_id, at, gpus)
join hosts h on h.id = g.host_id
order by g.host_id
on conflict (host_id) do update set at = excluded.at, gpus = excluded.gpus
where excluded.at > host_telemetry.at + interval '1 second'
returning host_id;

-- name: write_points
insert into gpu_history as old (step, host_id, gpu, at, samples, utilisation_samples, utilisation_sum, utilisation_max,
  memory_used_max_bytes, memory_total_bytes, temperature_max_celsius)
select s.step, p.host_id, p.gpu, date_trunc(s.step, p.at), 1, (p.utilisation is not null)::integer, coalesce(p.utilisation, 0),
  p.utilisation, p.used, p.total, p.temperature
from unnest(%(hosts)s::text[], %(ats)s::timestamptz[], %(devices)s::integer[], %(utilisations)s::double precision[],
  %(used)s::bigint[], %(total)s::bigint[], %(temperatures)s::double precision[])
  as p(host_id, at, gpu, utilisation, used, total, temperature)
cross join (values ('minute'), ('hour')) as s(step)
order by s.step, p.host_id, p.gpu
on conflict (step, host_id, gpu, at) do update set
  samples = old.samples + 1,
  utilisation_samples = old.utilisation_samples + excluded.utilisation_samples,
  utilisation_sum = old.utilisation_sum + excluded.utilisation_sum,
  utilisation_max = greatest(old.utilisation_max, excluded.utilisation_max),
  memory_used_max_bytes = greatest(old.memory_used_max_bytes, excluded.memory_used_max_bytes),
  memory_total_bytes = excluded.memory_total_bytes,
  temperature_max_celsius = greatest(old.temperature_max_celsius, excluded.temperature_max_celsius);

-- name: read_latest
select host_id, at, gpus from host_telemetry where host_id = %(host_id)s;

-- name: read_points
select gpu, at, samples, utilisation_sum / nullif(utilisation_samples, 0) as utilisation_percent, utilisation_max,
  memory_used_max_bytes, memory_total_bytes, temperature_max_celsius
from gpu_history where step = %(step)s and host_id = %(host_id)s and at > %(since)s order by at, gpu;

-- name: prune_points
delete from gpu_history where (step = 'minute' and at < %(minutes)s) or (step = 'hour' and at < %(hours)s);

-- name: prune_latest
-- Of hosts that are long gone.
delete from host_telemetry where at < %(hours)s;
