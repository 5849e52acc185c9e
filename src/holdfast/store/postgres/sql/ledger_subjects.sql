-- What the ledger's rows are about: one attempt on one host, or the time of a host that no lease held. A row that names a
-- subject keeps it.

create table ledger_subjects (
  id        bigint generated always as identity primary key,
  unit      text not null check (unit in ('gpu', 'cpu')),
  host_id   text not null,
  host      text not null, -- its name
  pool      text not null,
  job_id    text not null default '', -- '': no lease, or many brief jobs in one
  attempt   integer not null default 0,
  job_name  text not null default '',
  project   text not null default '',
  owner     text not null default '',
  queue     text not null default '',
  labels    jsonb not null default '{}',
  settled   boolean not null -- false: its names may still change, because its job has not ended
);
create unique index ledger_subjects_key on ledger_subjects (job_id, attempt, host_id, unit, pool, project, owner, queue, md5(labels::text));
create index ledger_subjects_open on ledger_subjects (job_id) where not settled;

-- The value of a field by which people ask; '' where there is none. A label is asked for as `label:KEY`.
create function ledger_field(s ledger_subjects, field text, at timestamptz) returns text language sql stable as $$
  select coalesce(case field
    when 'job' then s.job_id when 'owner' then s.owner when 'project' then s.project when 'queue' then s.queue
    when 'pool' then s.pool when 'host' then s.host
    when 'time' then to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"')
    else s.labels->>substr(field, 7) end, '')
$$;

-- name: put_ledger_subjects
-- Returns those that are new; `find_ledger_subjects` reads the others.
insert into ledger_subjects (unit, host_id, host, pool, job_id, attempt, job_name, project, owner, queue, labels, settled)
select x.unit, x.host_id, x.host, x.pool, x.job_id, x.attempt, x.job_name, x.project, x.owner, x.queue, x.labels, x.settled
from jsonb_to_recordset(%(rows)s::jsonb) as x(unit text, host_id text, host text, pool text, job_id text, attempt integer,
  job_name text, project text, owner text, queue text, labels jsonb, settled boolean)
on conflict do nothing
returning id, unit, host_id, pool, job_id, attempt, project, owner, queue, labels;

-- name: find_ledger_subjects
select s.id, s.unit, s.host_id, s.pool, s.job_id, s.attempt, s.project, s.owner, s.queue, s.labels
from jsonb_to_recordset(%(rows)s::jsonb) as x(unit text, host_id text, pool text, job_id text, attempt integer,
  project text, owner text, queue text, labels jsonb)
join ledger_subjects s on s.job_id = x.job_id and s.attempt = x.attempt and s.host_id = x.host_id and s.unit = x.unit
  and s.pool = x.pool and s.project = x.project and s.owner = x.owner and s.queue = x.queue
  and md5(s.labels::text) = md5(x.labels::text);

-- name: settle_ledger_subjects
-- What is settled is added to the totals, which never fall.
with settled as (
  update ledger_subjects set settled = true where job_id = any(%(jobs)s) and not settled returning id, unit
)
insert into ledger_totals (unit, name, ms)
select s.unit, d.name, sum(d.ms)::bigint from settled s join ledger_days d on d.subject = s.id group by 1, 2 order by 1, 2
on conflict (unit, name) do update set ms = ledger_totals.ms + excluded.ms;

-- name: fold_ledger_subjects
-- Subjects without a job, for days that are older than the hours: what is kept for ever must not grow with each job.
insert into ledger_subjects (unit, host_id, host, pool, project, owner, queue, labels, settled)
select s.unit, s.host_id, max(s.host), s.pool, s.project, s.owner, s.queue, s.labels, true
from ledger_subjects s
where s.settled and s.job_id <> '' and exists (select from ledger_days d where d.subject = s.id and d.at < %(before)s)
group by s.unit, s.host_id, s.pool, s.project, s.owner, s.queue, s.labels
on conflict do nothing;

-- name: prune_ledger_subjects
delete from ledger_subjects s where s.settled
  and not exists (select from ledger_hours h where h.subject = s.id)
  and not exists (select from ledger_days d where d.subject = s.id);

-- name: find_subjects_of_jobs
select id, job_id, attempt, host_id, unit from ledger_subjects where job_id = any(%(jobs)s);


-- name: read_ledger_sums
-- The parts are stretches of time, each with the table that it is read from, and with its place between the cuts of the span.
-- `shown` is the length of what the field `time` shows; null: nothing.
with parts as (
  select * from unnest(%(steps)s::text[], %(sinces)s::timestamptz[], %(untils)s::timestamptz[], %(places)s::integer[])
    as p(step, since, until, place)
), found as (
  select h.subject, h.name, p.place, date_trunc(%(shown)s::text, m.at, 'UTC') as at, sum(m.ms) as ms
  from parts p join ledger_hours h on p.step = 'minute' and h.at >= date_trunc('hour', p.since, 'UTC') and h.at < p.until
  cross join lateral minutes_of(h) m where m.at >= p.since and m.at < p.until group by 1, 2, 3, 4
  union all
  select h.subject, h.name, p.place, date_trunc(%(shown)s::text, h.at, 'UTC'), sum(h.ms)
  from parts p join ledger_hours h on p.step = 'hour' and h.at >= p.since and h.at < p.until group by 1, 2, 3, 4
  union all
  select d.subject, d.name, p.place, date_trunc(%(shown)s::text, d.at, 'UTC'), sum(d.ms)
  from parts p join ledger_days d on p.step = 'day' and d.at >= p.since and d.at < p.until group by 1, 2, 3, 4
)
select array(select ledger_field(s, f.field, r.at) from unnest(%(by)s::text[]) with ordinality as f(field, n) order by f.n) as key,
       r.place, r.name, sum(r.ms)::bigint as ms, bool_or(not s.settled) as provisional
from found r join ledger_subjects s on s.id = r.subject
where s.unit = %(unit)s and r.ms > 0 and not exists (
  select from unnest(%(fields)s::text[], %(values)s::text[]) as w(field, value) where ledger_field(s, w.field, null) <> w.value)
group by 1, 2, 3
order by 1, 2, 3;

-- name: read_ledger_losses
-- By attempt and name, with the cause of the attempt's end.
with parts as (
  select * from unnest(%(steps)s::text[], %(sinces)s::timestamptz[], %(untils)s::timestamptz[]) as p(step, since, until)
), found as (
  select h.subject, h.name, sum(m.ms) as ms
  from parts p join ledger_hours h on p.step = 'minute' and h.at >= date_trunc('hour', p.since, 'UTC') and h.at < p.until
  cross join lateral minutes_of(h) m where m.at >= p.since and m.at < p.until and h.name = any(%(names)s) group by 1, 2
  union all
  select h.subject, h.name, sum(h.ms)
  from parts p join ledger_hours h on p.step = 'hour' and h.at >= p.since and h.at < p.until
  where h.name = any(%(names)s) group by 1, 2
  union all
  select d.subject, d.name, sum(d.ms)
  from parts p join ledger_days d on p.step = 'day' and d.at >= p.since and d.at < p.until
  where d.name = any(%(names)s) group by 1, 2
), summed as (
  select s.job_id, s.attempt, max(s.job_name) as job_name, max(s.project) as project, max(s.owner) as owner,
         max(s.queue) as queue, r.name, sum(r.ms)::bigint as ms
  from found r join ledger_subjects s on s.id = r.subject
  where s.unit = %(unit)s and s.job_id <> '' and r.ms > 0 and not exists (
    select from unnest(%(fields)s::text[], %(values)s::text[]) as w(field, value) where ledger_field(s, w.field, null) <> w.value)
  group by s.job_id, s.attempt, r.name
)
select s.*, coalesce(a.cause, '') as cause, coalesce(j.tasks * case when %(unit)s = 'gpu' then j.gpus else j.cpu_slots end, 0) as devices
from summed s left join attempts a on a.job_id = s.job_id and a.number = s.attempt left join jobs j on j.id = s.job_id
order by s.job_id, s.attempt;
