-- Jobs that hold GPUs which do nothing, as the leader last saw them (HELD-1).

create table idle_gpus (
  job_id       text primary key,
  epoch        bigint not null,
  gpus         integer not null,
  since        timestamptz not null,
  seen_at      timestamptz not null, -- the end of the last look
  told_at      timestamptz,          -- when people were told; null: not yet
  usd_per_hour double precision      -- null: its GPUs have no price
);

-- name: read_idle_gpus
select job_id, epoch, gpus, since, seen_at, told_at, usd_per_hour from idle_gpus order by job_id;

-- name: put_idle_gpus
insert into idle_gpus (job_id, epoch, gpus, since, seen_at, told_at, usd_per_hour)
select x.job_id, x.epoch, x.gpus, x.since, x.seen_at, x.told_at, x.usd_per_hour
from jsonb_to_recordset(%(rows)s::jsonb) as x(job_id text, epoch bigint, gpus integer, since timestamptz,
  seen_at timestamptz, told_at timestamptz, usd_per_hour double precision)
on conflict (job_id) do update
set epoch = excluded.epoch, gpus = excluded.gpus, since = excluded.since, seen_at = excluded.seen_at,
    told_at = excluded.told_at, usd_per_hour = excluded.usd_per_hour;

-- name: keep_idle_gpus
-- The others work again, or ended.
delete from idle_gpus where job_id <> all(%(ids)s::text[]);
