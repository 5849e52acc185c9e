-- Events: what happened, in the order in which it was committed. An event has a row here, or is one of a batch
-- (`event_batches`). Both are in one order, by transaction and then by id.
--
-- STORE-4: a reader sees only events whose transaction no older one can still commit after.

create table events (
  tx       xid8 not null default pg_current_xact_id(),
  id       bigint generated always as identity,
  at       timestamptz not null,
  kind     text not null,
  job_id   text,
  attempt  integer,
  epoch    bigint,
  rank     integer,
  host_id  text,
  queue    text,
  project  text,
  message  text not null default '',
  data     jsonb not null default '{}',
  primary key (tx, id)
);
create index events_of_job on events (job_id, tx, id) where job_id is not null;
create index events_of_no_job on events (at) where job_id is null; -- for upkeep; those of a job go with it

-- name: write_events
-- The recordset keeps the array's order, so ids follow the order the moves were made in.
-- BY-1: an event that a user's call wrote names the user.
insert into events (at, kind, job_id, attempt, epoch, rank, host_id, queue, project, message, data)
select %(now)s, x.kind, x.job_id, x.attempt, x.epoch, x.rank, x.host_id, x.queue, x.project, coalesce(x.message, ''),
       coalesce(x.data, '{}') || case when %(by)s = '' then '{}' else jsonb_build_object('by', %(by)s::text) end
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  kind text, job_id text, attempt integer, epoch bigint, rank integer, host_id text, queue text, project text,
  message text, data jsonb);

-- name: read_events
-- STORE-4: transactions commit out of order, so only events older than every running transaction are shown.
select e.tx::text, e.id, e.at, e.kind, e.job_id, e.attempt, e.epoch, e.rank, e.host_id, e.queue, e.project, e.message, e.data,
       e.tx as place
from (
  (select e.tx, e.id, e.at, e.kind, e.job_id, e.attempt, e.epoch, e.rank, e.host_id, e.queue, e.project, e.message, e.data
   from events e
   where (e.tx, e.id) > (%(tx)s::xid8, %(id)s::bigint) and e.tx < pg_snapshot_xmin(pg_current_snapshot())
     and (%(job_id)s::text is null or e.job_id = %(job_id)s)
     and (%(kinds)s::text[] is null or e.kind = any(%(kinds)s))
   order by e.tx, e.id
   limit %(limit)s)
  union all
  (select e.tx, e.id, e.at, e.kind, e.job_id, e.attempt, e.epoch, e.rank, e.host_id, e.queue, e.project, e.message, e.data
   from batched_events e
   where e.tx >= %(tx)s::xid8 and (e.tx, e.id) > (%(tx)s::xid8, %(id)s::bigint)
     and e.tx < pg_snapshot_xmin(pg_current_snapshot())
     and (%(job_id)s::text is null or (e.job_id = %(job_id)s and e.n = any(array(
       select unnest(array[a.taken_batch, a.ended_batch]) from attempts a where a.job_id = %(job_id)s))))
     and (%(kinds)s::text[] is null or e.kind = any(%(kinds)s))
   order by e.tx, e.id
   limit %(limit)s)
) e
order by place, e.id
limit %(limit)s;

-- name: tail_events
select * from (
  select e.tx::text, e.id, e.at, e.kind, e.job_id, e.attempt, e.epoch, e.rank, e.host_id, e.queue, e.project, e.message, e.data,
         e.tx as place
  from (
    (select e.tx, e.id, e.at, e.kind, e.job_id, e.attempt, e.epoch, e.rank, e.host_id, e.queue, e.project, e.message, e.data
     from events e
     where e.tx < pg_snapshot_xmin(pg_current_snapshot())
       and (%(job_id)s::text is null or e.job_id = %(job_id)s)
       and (%(kinds)s::text[] is null or e.kind = any(%(kinds)s))
     order by e.tx desc, e.id desc
     limit %(limit)s)
    union all
    (select e.tx, e.id, e.at, e.kind, e.job_id, e.attempt, e.epoch, e.rank, e.host_id, e.queue, e.project, e.message, e.data
     from batched_events e
     where e.tx < pg_snapshot_xmin(pg_current_snapshot())
       and (%(job_id)s::text is null or (e.job_id = %(job_id)s and e.n = any(array(
         select unnest(array[a.taken_batch, a.ended_batch]) from attempts a where a.job_id = %(job_id)s))))
       and (%(kinds)s::text[] is null or e.kind = any(%(kinds)s))
     order by e.tx desc, e.id desc
     limit %(limit)s)
  ) e
  order by place desc, e.id desc
  limit %(limit)s
) last
order by place, id;

-- name: read_events_of
-- STORE-4 as in read_events.
select e.tx::text, e.id, e.at, e.kind, e.job_id, e.attempt, e.epoch, e.rank, e.host_id, e.queue, e.project, e.message, e.data,
       e.tx as place
from unnest(%(ids)s::text[]) as asked(id) cross join lateral (
  select * from (
    (select x.tx, x.id, x.at, x.kind, x.job_id, x.attempt, x.epoch, x.rank, x.host_id, x.queue, x.project, x.message, x.data
     from events x
     where x.job_id = asked.id and x.tx < pg_snapshot_xmin(pg_current_snapshot())
     order by x.tx desc, x.id desc limit %(last)s)
    union all
    (select x.tx, x.id, x.at, x.kind, x.job_id, x.attempt, x.epoch, x.rank, x.host_id, x.queue, x.project, x.message, x.data
     from batched_events x
     where x.job_id = asked.id and x.tx < pg_snapshot_xmin(pg_current_snapshot())
       and x.n = any(array(select unnest(array[a.taken_batch, a.ended_batch]) from attempts a where a.job_id = asked.id))
     order by x.tx desc, x.id desc limit %(last)s)
  ) x
  order by x.tx desc, x.id desc limit %(last)s
) e
order by e.job_id, place, e.id;

-- name: is_skip_told
-- Under the job's lock: an upload is repeated where its answer was lost.
select exists (select 1 from events where job_id = %(job_id)s and kind = %(kind)s and epoch = %(epoch)s and rank = %(rank)s
                 and (data->>'number')::bigint = %(number)s) as told;

-- name: prune_events
delete from events where job_id = any(%(ids)s);

-- name: prune_other_events
-- Events of hosts, queues and settings, and of arrays, runs and call sets that are on record no more (HISTORY-1).
with gone as (
  delete from events e where (e.tx, e.id) in (
  select o.tx, o.id from events o
  where o.job_id is null and o.at < %(before)s
    and not exists (select from arrays a where a.id = o.data->>'array')
    and not exists (select from workflow_runs r where r.id = o.data->>'run')
    and not exists (select from call_sets c where c.id = o.data->>'set')
  order by o.at limit %(limit)s)
  returning e.tx, e.id
)
update events_pruned p set tx = l.tx, id = l.id
from (select tx, id from gone order by tx desc, id desc limit 1) l
where (l.tx, l.id) > (p.tx, p.id);
