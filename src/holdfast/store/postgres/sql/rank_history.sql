-- Readings of each task's processor time and memory, by the minute and by the hour.

create table rank_history (
  job_id           text not null,
  step             text not null constraint rank_history_step_check check (step in ('minute', 'hour')),
  rank             integer not null,
  attempt          integer not null,
  at               timestamptz not null, -- when the step began
  samples          integer not null check (samples >= 1),
  cores_sum        double precision not null, -- processors kept busy, as cores_max
  cores_max        double precision not null,
  memory_max_bytes bigint not null, -- without the file cache
  devices          integer[], -- its GPUs' indexes on its host, null for none: the task's row goes with its attempt
  primary key (job_id, step, rank, attempt, at)
) with (fillfactor = 70);
create index rank_history_at on rank_history (step, at);

-- name: write_rank_points
-- A host is believed about the tasks that are reserved for it under their present epochs (FENCE-1).
insert into rank_history as old (job_id, step, rank, attempt, at, samples, cores_sum, cores_max, memory_max_bytes,
  devices)
select p.job_id, s.step, p.rank, t.attempt, date_trunc(s.step, p.at), 1, p.cores, p.peak, p.memory,
  nullif(t.devices, '{}')
from unnest(%(hosts)s::text[], %(ats)s::timestamptz[], %(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[],
  %(cores)s::double precision[], %(peaks)s::double precision[], %(memory)s::bigint[])
  as p(host_id, at, job_id, rank, epoch, cores, peak, memory)
join tasks t on t.job_id = p.job_id and t.rank = p.rank and t.epoch = p.epoch and t.host_id = p.host_id
cross join (values ('minute'), ('hour')) as s(step)
order by p.job_id, s.step, p.rank
on conflict (job_id, step, rank, attempt, at) do update set
  samples = old.samples + 1,
  cores_sum = old.cores_sum + excluded.cores_sum,
  cores_max = greatest(old.cores_max, excluded.cores_max),
  memory_max_bytes = greatest(old.memory_max_bytes, excluded.memory_max_bytes);

-- name: read_rank_points
select rank, attempt, date_bin(make_interval(secs => %(point_seconds)s), at, 'epoch') as at, sum(samples)::integer as samples,
  sum(cores_sum) / sum(samples) as cores, max(cores_max) as cores_max, max(memory_max_bytes) as memory_max_bytes,
  coalesce(max(devices), '{}') as devices
from rank_history
where job_id = %(job_id)s and step = %(step)s and rank = any(%(ranks)s::integer[]) and at > %(since)s
  and (%(attempt)s::integer is null or attempt = %(attempt)s)
group by 1, 2, 3 order by 3, 1, 2;

-- name: prune_rank_points
delete from rank_history where (step = 'minute' and at < %(minutes)s) or (step = 'hour' and at < %(hours)s);

-- name: prune_usage
delete from rank_history where job_id = any(%(ids)s);
