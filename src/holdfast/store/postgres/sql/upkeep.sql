-- name: find_over_arrays
-- Arrays whose history is over: every member has ended, and that is long ago (HISTORY-1).
select a.id from arrays a
where a.created_at < %(before)s and not a.awaited
  and not exists (select from jobs j where j.array_id = a.id and j.state in ('waiting', 'queued', 'reserved', 'running', 'draining'))
  and not exists (select from jobs j where j.array_id = a.id and (j.ended_at is null or j.ended_at >= %(before)s::timestamptz))
order by a.id limit %(limit)s;

-- name: find_old_jobs
-- HISTORY-1: a job goes when it ended long ago, and so did all that names it: its dependants know (awaited), its array
-- (all of its members), the run whose node it is, the call sets whose output it printed. The newest job of a schedule
-- stays with the schedule.
select j.id from jobs j
where j.ended_at < %(before)s::timestamptz and not j.awaited
  and (j.array_id is null or j.array_id = any(%(arrays)s::text[]) or not exists (select from arrays a where a.id = j.array_id))
  and not exists (select from workflow_runs r where r.id = j.origin_run and (r.ended_at is null or r.ended_at >= %(before)s::timestamptz))
  and not exists (select from schedules s where s.last_job_id = j.id)
  and not exists (select from call_outputs o join call_sets c on c.id = o.set_id
                  where o.job_id = j.id and (c.ended_at is null or c.ended_at >= %(before)s::timestamptz))
limit %(limit)s;

-- name: lock_old_jobs
-- Those of the found ones that are old still. Skips locked rows: a job that is being revived is no longer old.
select id from jobs where id = any(%(ids)s) and ended_at < %(before)s::timestamptz and not awaited order by id for update skip locked;

-- name: prune_chunks
delete from log_chunks where job_id = any(%(ids)s);

-- name: prune_streams
delete from log_streams where job_id = any(%(ids)s);

-- name: prune_outputs
delete from call_outputs where job_id = any(%(ids)s);

-- name: prune_forensics
delete from forensics where job_id = any(%(ids)s);

-- name: prune_attempts
delete from attempts where job_id = any(%(ids)s);

-- name: prune_replacements
delete from replacements where job_id = any(%(ids)s);

-- name: prune_secrets
delete from job_secrets where job_id = any(%(ids)s);

-- name: note_pruned_events
-- While their attempts say which batches the jobs' events are in.
update events_pruned p set tx = l.tx, id = l.id
from (
  (select e.tx, e.id from events e where e.job_id = any(%(ids)s) order by e.tx desc, e.id desc limit 1)
  union all
  (select x.tx, x.id from batched_events x
   where x.job_id = any(%(ids)s) and x.n = any(array(
     select unnest(array[a.taken_batch, a.ended_batch]) from attempts a where a.job_id = any(%(ids)s)))
   order by x.tx desc, x.id desc limit 1)
  order by tx desc, id desc limit 1
) l
where (l.tx, l.id) > (p.tx, p.id);

-- name: find_pruned_event
select tx::text, id from events_pruned;

-- name: prune_events
delete from events where job_id = any(%(ids)s);

-- name: prune_jobs
delete from jobs where id = any(%(ids)s);

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

-- name: gauge_hosts
select h.state, count(*), count(*) filter (where b.flagged_dead_at is not null and h.state <> 'terminated') as dead,
       sum(h.cpu_slots)::bigint as cpu_slots, sum(jsonb_array_length(h.gpus))::bigint as gpus
from hosts h join heartbeats b on b.host_id = h.id group by h.state;

-- name: gauge_busy
select coalesce(sum(cpu_slots), 0)::bigint as slots,
       coalesce(sum(cardinality(devices)), 0)::bigint as gpus
from tasks where state in ('reserved', 'running', 'preempting');

-- name: gauge_oldest_queued
select coalesce(extract(epoch from coalesce(%(now)s, clock_timestamp()) - min(queued_at)), 0)::double precision
from jobs where state = 'queued';

-- name: gauge_oldest_transaction
-- An old snapshot keeps dead rows in every hot table, and an old writer holds back the readers of events (STORE-4).
select coalesce(greatest(
  (select extract(epoch from max(clock_timestamp() - a.xact_start)) from pg_stat_activity a
   where (a.backend_xmin is not null or a.backend_xid is not null) and a.pid <> pg_backend_pid()
     and a.backend_type = 'client backend'),
  (select extract(epoch from max(clock_timestamp() - p.prepared)) from pg_prepared_xacts p)
), 0)::double precision;

-- name: settle_heartbeats
-- These four run after the clock was set back (LEASE-5). Each reads the clock when it writes, so a row that was written
-- meanwhile is compared anew.
with ahead as (
  select host_id from heartbeats where heartbeat_at > coalesce(%(now)s::timestamptz, clock_timestamp())
  order by host_id for no key update
)
update heartbeats b set heartbeat_at = least(b.heartbeat_at, coalesce(%(now)s::timestamptz, clock_timestamp()))
from ahead where b.host_id = ahead.host_id;

-- name: settle_drains
with ahead as (
  select id from jobs
  where state = 'draining' and drain_since > coalesce(%(now)s::timestamptz, clock_timestamp())
  order by id for update
)
update jobs j set drain_since = least(j.drain_since, coalesce(%(now)s::timestamptz, clock_timestamp()))
from ahead where j.id = ahead.id;

-- name: settle_reservations
update attempts a set reserved_at = least(a.reserved_at, coalesce(%(now)s::timestamptz, clock_timestamp()))
from jobs j
where j.state in ('reserved', 'running', 'draining') and a.job_id = j.id and a.number = j.attempts
  and a.reserved_at > coalesce(%(now)s::timestamptz, clock_timestamp());

-- name: settle_leases
-- A lease in force cannot end later than its TTL from now.
with ahead as (
  select job_id, rank from tasks
  where state in ('reserved', 'running', 'preempting')
    and lease_until > coalesce(%(now)s::timestamptz, clock_timestamp()) + lease_ttl_seconds * interval '1 second'
  order by job_id, rank for no key update
)
update tasks t set lease_until = least(
    t.lease_until, coalesce(%(now)s::timestamptz, clock_timestamp()) + t.lease_ttl_seconds * interval '1 second')
from ahead where t.job_id = ahead.job_id and t.rank = ahead.rank;
