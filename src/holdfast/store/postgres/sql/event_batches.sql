-- Events of many jobs, one row for all that were reserved together and one for all that ended together: a row and its index
-- entries for each event were an eighth of what a job of no length cost. `batched_events` shows them as `events` does; their ids
-- are from the same sequence. An attempt knows its batches, so that the events of a job are found.

create table event_batches (
  n         bigint generated always as identity primary key,
  tx        xid8 not null default pg_current_xact_id(),
  at        timestamptz not null,
  kind      text not null,
  data      jsonb not null default '{}',
  ids       bigint[] not null,
  began_ids bigint[] not null, -- of job.started, where that is told with the end
  job_ids   text[] not null,
  attempts  integer[] not null,
  epochs    bigint[] not null,
  host_ids  text[] not null,
  queues    text[] not null,
  projects  text[] not null,
  messages  text[] not null
);
create index event_batches_order on event_batches (tx, n);
-- The arrays are long and read as a whole, and to compress them took a twentieth of a sync's time.
alter table event_batches
  alter ids set storage external, alter began_ids set storage external, alter job_ids set storage external,
  alter attempts set storage external, alter epochs set storage external, alter host_ids set storage external,
  alter queues set storage external, alter projects set storage external, alter messages set storage external;

-- A column of a batch that says one thing of all its events may say it once.
create view batched_events as
select b.n, b.tx, x.id, b.at, x.kind, e.job_id, x.attempt, coalesce(e.epoch, b.epochs[1]) as epoch, null::integer as rank,
       e.host_id, e.queue, e.project, x.message, x.data
from event_batches b
cross join lateral unnest(b.ids, b.began_ids, b.job_ids, b.attempts, b.epochs, b.host_ids, b.queues, b.projects, b.messages)
  as e(id, began_id, job_id, attempt, epoch, host_id, queue, project, message)
cross join lateral (select coalesce(e.attempt, b.attempts[1]) as attempt) a
cross join lateral (
  values (e.began_id, a.attempt, 'job.started', 'attempt ' || a.attempt || ' runs', '{}'::jsonb),
         (e.id, a.attempt, b.kind, coalesce(e.message, b.messages[1]), b.data)
) as x(id, attempt, kind, message, data)
where x.id is not null;

-- name: prune_batches
-- Takes the events of these jobs out of their batches, and deletes the batches that have no other. Jobs that ended
-- together are old together, so a batch is written anew only a few times. What it says once of all stays.
with found as materialized (
  select distinct b.n from attempts a cross join lateral (values (a.taken_batch), (a.ended_batch)) as b(n)
  where a.job_id = any(%(ids)s::text[]) and b.n is not null
), held as materialized (
  select * from event_batches where n in (select n from found) order by n for update
), kept as materialized (
  select b.n, array_agg(e.id order by e.place) filter (where e.kept) as ids,
         array_agg(e.began_id order by e.place) filter (where e.kept) as began_ids,
         array_agg(e.job_id order by e.place) filter (where e.kept) as job_ids,
         array_agg(e.attempt order by e.place) filter (where e.kept) as attempts,
         array_agg(e.epoch order by e.place) filter (where e.kept) as epochs,
         array_agg(e.host_id order by e.place) filter (where e.kept) as host_ids,
         array_agg(e.queue order by e.place) filter (where e.kept) as queues,
         array_agg(e.project order by e.place) filter (where e.kept) as projects,
         array_agg(e.message order by e.place) filter (where e.kept) as messages
  from held b cross join lateral (
    select *, g.job_id <> all(%(ids)s::text[]) as kept
    from unnest(b.ids, b.began_ids, b.job_ids, b.attempts, b.epochs, b.host_ids, b.queues, b.projects, b.messages) with ordinality
      as g(id, began_id, job_id, attempt, epoch, host_id, queue, project, message, place)
  ) e
  group by b.n
), emptied as (
  delete from event_batches b using kept k where b.n = k.n and k.ids is null
)
update event_batches b
set ids = k.ids, began_ids = k.began_ids, job_ids = k.job_ids, host_ids = k.host_ids, queues = k.queues, projects = k.projects,
    attempts = case when cardinality(b.attempts) = 1 then b.attempts else k.attempts end,
    epochs = case when cardinality(b.epochs) = 1 then b.epochs else k.epochs end,
    messages = case when cardinality(b.messages) = 1 then b.messages else k.messages end
from kept k where b.n = k.n and k.ids is not null;

-- name: read_past
-- The newest starts and the newest ends of jobs, for forecasts: how long those took, and how quickly these followed each
-- other. What is read is bounded in rows, whatever the depth of the queues and the age of the cluster. Ends that are told
-- one by one (failures, gangs, retries) stand among the newest events.
with newest as materialized (
  select b.n, b.at, b.kind, b.job_ids, b.queues, sum(cardinality(b.job_ids)) over (order by b.n desc) as upto
  from (select n, at, kind, job_ids, queues from event_batches order by n desc limit 400) b
), told as (
  select b.at, b.kind, e.job_id, coalesce(e.queue, b.queues[1]) as queue
  from newest b cross join lateral unnest(b.job_ids, b.queues) as e(job_id, queue)
  where b.upto <= %(limit)s or b.n = (select max(n) from newest)
), ended as (
  select t.job_id from told t where t.kind = 'job.succeeded'
  union
  select e.job_id from (select kind, job_id from events order by tx desc, id desc limit 1000) e
  where e.kind in ('job.succeeded', 'job.failed')
), clock as (
  select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
)
select 'start' as what, t.queue, '' as project, '' as kin, null::double precision as seconds,
       extract(epoch from c.now - t.at)::double precision as age_seconds
from told t cross join clock c where t.kind = 'job.reserved' and t.at > c.now - interval '1 day'
union all
(select 'end', j.queue, j.project, s.kin, extract(epoch from j.ended_at - j.started_at)::double precision,
        extract(epoch from c.now - j.ended_at)::double precision
 from ended d join jobs j on j.id = d.job_id cross join clock c
 cross join lateral (select {span:j}) s
 where j.ended_at is not null and j.started_at is not null and not j.spec ? 'executor'
 order by j.ended_at desc
 limit 500);

-- name: read_arrivals
-- Jobs of a higher priority than this one that were queued lately, of those that started last: jobs like them come before
-- the ones that wait.
select {candidate:j}, extract(epoch from %(now)s::timestamptz - j.queued_at)::double precision as age_seconds
from (
  select distinct e.job_id from (select kind, job_ids from event_batches order by n desc limit 400) b
  cross join lateral unnest(b.job_ids) as e(job_id)
  where b.kind = 'job.reserved'
  limit 1000
) d join jobs j on j.id = d.job_id
where j.priority > %(priority)s and j.attempts = 1 and not j.spec ? 'executor'
  and j.queued_at > %(now)s::timestamptz - %(seconds)s * interval '1 second'
order by j.queued_at desc
limit 200;
