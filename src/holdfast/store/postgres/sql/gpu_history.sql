-- Readings of each GPU, by the minute and by the hour.

create table gpu_history (
  step                    text not null constraint gpu_history_step_check check (step in ('minute', 'hour')),
  host_id                 text not null,
  gpu                     integer not null, -- its index on the host
  at                      timestamptz not null, -- when the step began
  samples                 integer not null check (samples >= 1),
  utilisation_samples     integer not null, -- samples that told the utilisation
  utilisation_sum         double precision not null, -- percent, as utilisation_max
  utilisation_max         double precision,
  memory_used_max_bytes   bigint,
  memory_total_bytes      bigint not null,
  temperature_max_celsius double precision,
  primary key (step, host_id, gpu, at)
) with (fillfactor = 70);
create index gpu_history_at on gpu_history (step, at);

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

-- name: read_points
select gpu, at, samples, utilisation_sum / nullif(utilisation_samples, 0) as utilisation_percent, utilisation_max,
  memory_used_max_bytes, memory_total_bytes, temperature_max_celsius
from gpu_history where step = %(step)s and host_id = %(host_id)s and at > %(since)s order by at, gpu;

-- name: prune_points
delete from gpu_history where (step = 'minute' and at < %(minutes)s) or (step = 'hour' and at < %(hours)s);
