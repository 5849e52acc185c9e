-- Events have a row each, or are one of a batch (`batched_events`). Both are in one order, by transaction and then by id.

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
