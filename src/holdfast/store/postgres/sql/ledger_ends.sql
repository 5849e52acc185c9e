-- Ends of leases that the ledger has not counted yet, because the task's row is deleted or given to another host before. Jobs of
-- one task that succeed (`finish_jobs`) have none: their attempt says it all.

create table ledger_ends (
  job_id     text not null,
  rank       integer not null,
  epoch      bigint not null,
  attempt    integer not null,
  host_id    text not null,
  gpus       integer not null,
  cpu_slots  integer not null,
  begun_at   timestamptz not null,
  started_at timestamptz,
  ended_at   timestamptz not null,
  tally      jsonb,
  tally_at   timestamptz, -- null: it came with the end
  primary key (job_id, rank, epoch)
);

-- name: write_ledger_ends
-- Before the tasks' rows are written. `at`: when the task ended; null: it ends now.
insert into ledger_ends (job_id, rank, epoch, attempt, host_id, gpus, cpu_slots, begun_at, started_at, ended_at, tally, tally_at)
select t.job_id, t.rank, t.epoch, t.attempt, t.host_id, t.gpus, t.cpu_slots, coalesce(t.reserved_at, a.reserved_at),
       coalesce(x.started_at, t.started_at), coalesce(x.ended_at, %(now)s), coalesce(x.tally, t.tally),
       case when x.tally is null then t.tally_at end
from jsonb_to_recordset(%(rows)s::jsonb) as x(job_id text, rank integer, started_at timestamptz, ended_at timestamptz, tally jsonb)
join tasks t on t.job_id = x.job_id and t.rank = x.rank
join attempts a on a.job_id = t.job_id and a.number = t.attempt
where t.job_id = any(%(ids)s) and t.host_id is not null
on conflict do nothing;

-- name: count_ledger_leases
select count(*) from tasks where host_id is not null;

-- name: read_ledger_leases
-- Leases that are held, ended ones whose task is gone, and jobs of one task that succeeded and told a tally or were seen before.
with leases as (
  select t.job_id, t.rank, t.epoch, t.attempt, t.host_id, t.gpus, t.cpu_slots, coalesce(t.reserved_at, a.reserved_at) as begun_at,
         t.started_at, t.ended_at, coalesce(t.facts->'tally', t.tally) as tally,
         case when t.facts->'tally' is null then t.tally_at end as tally_at, t.beat_at is not null as beats, false as left_over
  from tasks t join attempts a on a.job_id = t.job_id and a.number = t.attempt
  where t.host_id is not null and coalesce(t.reserved_at, a.reserved_at) < %(until)s
  union all
  select e.job_id, e.rank, e.epoch, e.attempt, e.host_id, e.gpus, e.cpu_slots, e.begun_at, e.started_at, e.ended_at, e.tally, e.tally_at, false, true
  from ledger_ends e where e.begun_at < %(until)s
  union all
  select a.job_id, 0, a.epoch, a.number, a.host_ids[1], j.gpus, j.cpu_slots, a.reserved_at, a.started_at, a.ended_at,
         (a.told::jsonb)->'tally', null, false, false
  from attempts a join jobs j on j.id = a.job_id
  where a.told is not null and a.ended_at >= %(since)s and a.reserved_at < %(until)s
    and (a.told like '%%"tally":%%' or exists (select from ledger_accounts x where x.job_id = a.job_id))
)
select l.*, coalesce(h.name, l.host_id) as host, coalesce(h.pool, '') as pool, j.name as job_name, j.project, j.owner, j.queue, j.labels,
       j.ended_at as over_at
from leases l join jobs j on j.id = l.job_id left join hosts h on h.id = l.host_id
order by l.job_id, l.rank, l.epoch;

-- name: read_ledger_brief
-- The minutes of jobs of one task that succeeded within seconds and told no tally. More than %(most)s of them in a span are put
-- together by what people ask for, without their ids, because there may be thousands each second.
with brief as (
  select a.job_id, a.number, a.host_ids[1] as host_id, j.gpus, j.cpu_slots, j.name, j.project, j.owner, j.queue, j.labels,
         greatest(a.reserved_at, %(since)s) as since, least(a.ended_at, %(until)s) as until,
         coalesce(a.started_at, a.ended_at) as started_at, count(*) over () <= %(most)s as apart
  from attempts a join jobs j on j.id = a.job_id
  where a.told is not null and a.ended_at >= %(since)s and a.reserved_at < %(until)s and a.told not like '%%"tally":%%'
    and not exists (select from ledger_accounts x where x.job_id = a.job_id)
), parts as (
  select b.*, m.at,
         floor(extract(epoch from greatest(b.since, m.at)) * 1000)::bigint as begins,
         floor(extract(epoch from least(b.until, m.at + interval '1 minute')) * 1000)::bigint as ends,
         floor(extract(epoch from b.started_at) * 1000)::bigint as starts
  from brief b cross join lateral generate_series(date_trunc('minute', b.since, 'UTC'), b.until, interval '1 minute') as m(at)
  where b.until > b.since
), named as (
  select p.*, 'setting_up' as what, greatest(0, least(p.ends, p.starts) - p.begins) as ms from parts p
  union all
  select p.*, 'unmeasured_busy', greatest(0, p.ends - greatest(p.begins, p.starts)) from parts p
)
select n.at, n.host_id, coalesce(h.name, n.host_id) as host, coalesce(h.pool, '') as pool,
       case when n.apart then n.job_id else '' end as job_id, case when n.apart then n.number else 0 end as attempt,
       case when n.apart then n.name else '' end as job_name, n.project, n.owner, n.queue, n.labels, n.what,
       sum(n.ms * n.gpus)::bigint as gpu_ms, sum(n.ms * n.cpu_slots)::bigint as cpu_ms
from named n left join hosts h on h.id = n.host_id
where n.ms > 0
group by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12;

-- name: prune_ledger_ends
-- Of jobs that are deleted: nothing can be said of them any more.
delete from ledger_ends e where not exists (select from jobs j where j.id = e.job_id);

-- name: forget_ledger_ends
delete from ledger_ends e using unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[]) as g(job_id, rank, epoch)
where e.job_id = g.job_id and e.rank = g.rank and e.epoch = g.epoch;
