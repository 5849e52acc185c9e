-- name: read_events
-- STORE-4: transactions commit out of order, so only events older than every running transaction are shown.
select e.tx::text, e.id, e.at, e.kind, e.job_id, e.attempt, e.epoch, e.rank, e.host_id, e.queue, e.project, e.message, e.data
from events e
where (e.tx, e.id) > (%(tx)s::xid8, %(id)s::bigint) and e.tx < pg_snapshot_xmin(pg_current_snapshot())
  and (%(job_id)s::text is null or e.job_id = %(job_id)s)
  and (%(kinds)s::text[] is null or e.kind = any(%(kinds)s))
order by e.tx, e.id
limit %(limit)s;

-- name: tail_events
select * from (
  select e.tx::text, e.id, e.at, e.kind, e.job_id, e.attempt, e.epoch, e.rank, e.host_id, e.queue, e.project, e.message, e.data,
         e.tx as place
  from events e
  where e.tx < pg_snapshot_xmin(pg_current_snapshot())
    and (%(job_id)s::text is null or e.job_id = %(job_id)s)
    and (%(kinds)s::text[] is null or e.kind = any(%(kinds)s))
  order by e.tx desc, e.id desc
  limit %(limit)s
) last
order by place, id;
