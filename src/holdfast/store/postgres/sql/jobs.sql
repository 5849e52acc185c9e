-- Jobs, their tasks and attempts, as they are submitted and read.

-- name: hold_queues
-- A key-share lock lets submissions run side by side and with pauses, but not with the queue's deletion.
select name from queues where name = any(%(names)s) order by name for key share;

-- name: insert_jobs
-- "on conflict do nothing" without a target: a repeated id is a repeated call, a repeated key an earlier submission.
-- The queues are held as by hold_queues; where one is missing nothing is written.
-- `limited`: whether any project's or the cluster's settings set a quota, so that quotas cost nothing where there are
-- none. Without `limited_too` nothing is written where one is set.
-- `silent`: the caller needs no rows back.
-- `wait_cause`: what the job waits for besides its start time, which is kept until that wait is over.
with limits as materialized (
  select exists (select from cluster where coalesce(settings->>'quota_jobs', settings->>'quota_gpus') is not null)
    or exists (select from projects where coalesce(settings->>'quota_jobs', settings->>'quota_gpus') is not null) as limited
), clock as materialized (
  select coalesce(%(now)s::timestamptz, clock_timestamp()) as at
), held as materialized (
  select name from queues where name = any(%(names)s::text[]) order by name for key share
), given as (
  select * from jsonb_to_recordset(%(rows)s::jsonb) as x(
    id text, name text, project text, queue text, priority smallint, tasks integer, gpus integer, cpu_slots integer,
    memory_bytes bigint, labels jsonb, spec jsonb, spec_hash text, idempotency_key text, start_at double precision,
    secrets jsonb, wait_cause text, wait_reason text, owner text, origin_run text, origin_node integer,
    array_id text, array_index integer)
), written as (
  insert into jobs (id, name, project, queue, priority, state, reason, tasks, gpus, cpu_slots, memory_bytes, labels,
                    spec, spec_hash, idempotency_key, preemptible, wait_cause, wait_until, created_at, queued_at,
                    owner, origin_run, origin_node, array_id, array_index, place)
  select g.id, g.name, g.project, g.queue, g.priority, case when w.cause is null then 'queued' else 'waiting' end,
         case when g.wait_cause is not null then g.wait_reason when w.late then %(waits)s::text else %(submitted)s::text end, g.tasks, g.gpus, g.cpu_slots,
         g.memory_bytes, coalesce(g.labels, '{}'), g.spec, decode(g.spec_hash, 'hex'), g.idempotency_key,
         coalesce((g.spec->>'preemptible')::boolean, false),
         w.cause, case when w.late then to_timestamp(g.start_at) end, c.at, case when w.cause is null then c.at end,
         coalesce(g.owner, ''), g.origin_run, g.origin_node, g.array_id, g.array_index, nextval('job_order')
  from clock c cross join given g cross join lateral (
    select l.late, coalesce(g.wait_cause, case when l.late then 'start_time' end) as cause
    from (select coalesce(to_timestamp(g.start_at) > c.at, false) as late) l
  ) w
  where (select count(*) from held) = cardinality(%(names)s::text[])
    and (%(limited_too)s::boolean or not (select limited from limits))
  on conflict do nothing
  returning *
), apart as (
  insert into job_secrets (job_id, secrets)
  select w.id, g.secrets from written w join given g using (id) where g.secrets is not null and g.secrets <> '{}'
), logged as (
  insert into events (at, kind, job_id, epoch, queue, project, message, data)
  select c.at, 'job.submitted', w.id, 0, w.queue, w.project, w.reason, jsonb_build_object('name', w.name, 'owner', w.owner)
  from written w cross join clock c
)
select id, name, owner, project, queue, priority, state, reason, tasks, gpus, cpu_slots, memory_bytes, labels, spec, epoch,
       attempts, wait_cause, wait_until, created_at, queued_at, revision, array_id, array_index,
       (select limited from limits) as limited
from written
where not %(silent)s::boolean;

-- name: find_submitted
-- The jobs a submission found there already, by id or by idempotency key.
select j.id, j.project, j.idempotency_key, j.spec_hash from jobs j
where j.id = any(%(ids)s)
   or (j.project, j.idempotency_key) in (select * from unnest(%(projects)s::text[], %(keys)s::text[]));

-- name: read_jobs
-- While an attempt lives its newest beat is in the tasks; after it, in the job's own row.
select {columns:job:j but step total beat_at},
       case when b.beat_at is null then j.step else b.step end as step,
       case when b.beat_at is null then j.total else b.total end as total, coalesce(b.beat_at, j.beat_at) as beat_at
from jobs j left join lateral (
  select t.step, t.total, t.beat_at from tasks t where t.job_id = j.id and t.beat_at is not null
  order by t.beat_at desc, t.rank limit 1
) b on j.state in ('reserved', 'running', 'draining')
where j.id = any(%(ids)s);

-- name: list_job_ids
-- Planned anew for each call, because the conditions given decide which index serves.
select j.id from jobs j
where (%(states)s::text[] is null or j.state = any(%(states)s))
  and (%(queue)s::text is null or j.queue = %(queue)s)
  and (%(project)s::text is null or j.project = %(project)s)
  and (%(owner)s::text is null or j.owner = %(owner)s)
  and (%(name)s::text is null or j.name = %(name)s)
  and (%(parent)s::text is null or (j.spec ? 'parent' and j.spec->>'parent' = %(parent)s))
  and (%(part)s::text is null or position(lower(%(part)s) in lower(j.name)) > 0)
  and (%(since)s::timestamptz is null or j.created_at >= %(since)s)
  and (%(prefix)s::text is null or (j.id >= %(prefix)s and starts_with(j.id, %(prefix)s)))
  and (%(labels)s::jsonb is null or j.labels @> %(labels)s)
  and (%(cause)s::text is null or j.cause = %(cause)s)
  -- Retries made or decided. The failure that ended a job was not retried, so for an ended job its last attempt counts.
  and ((%(min_retries)s::integer is null and %(max_retries)s::integer is null)
       or coalesce((select a.retry_count from attempts a
                    where j.ended_at is not null and a.job_id = j.id and a.number = j.attempts),
                   case when j.ended_at is null then j.retries_charged else 0 end)
          between coalesce(%(min_retries)s, 0) and coalesce(%(max_retries)s, 2147483647))
  and (%(host_id)s::text is null or j.id in (
    select t.job_id from tasks t
    where t.host_id = %(host_id)s and t.state in ('reserved', 'running', 'preempting')))
  and (%(array_id)s::text is null or j.array_id = %(array_id)s)
  and (not %(single)s::boolean or j.array_id is null)
  and (%(executors)s::text is distinct from 'only' or j.spec ? 'executor')
  and (%(executors)s::text is distinct from 'hide' or not j.spec ? 'executor')
  and (%(family)s::text is null or j.spec->>'executor' = %(family)s)
  and (%(before)s::text is null or j.id < %(before)s)
order by j.id desc
limit %(limit)s;

-- name: count_jobs
-- Unfinished jobs only: each part is a scan of an index that has no others, or of few rows.
select queue, state, count(*) from jobs where state = 'queued' group by 1, 2
union all
select queue, state, count(*) from jobs where state in ('reserved', 'running', 'draining') group by 1, 2
union all
select queue, state, count(*) from jobs where state = 'waiting' group by 1, 2;

-- name: read_tasks
select {columns:task:t}, h.name as host_name
from tasks t left join hosts h on h.id = t.host_id
where t.job_id = any(%(ids)s)
order by t.job_id, t.rank;

-- name: read_attempts
select {columns:attempt:a but members step total}, members_of(a) as members,
       case when b.beat_at is null then a.step else b.step end as step,
       case when b.beat_at is null then a.total else b.total end as total,
       exists (select from forensics f where f.job_id = a.job_id and f.attempt = a.number) as has_forensics
from attempts a left join lateral (
  select t.step, t.total, t.beat_at from tasks t
  where t.job_id = a.job_id and t.attempt = a.number and t.beat_at is not null
  order by t.beat_at desc, t.rank limit 1
) b on a.state <> 'ended'
where a.job_id = %(id)s
order by a.number;

-- name: job_exists
select from jobs where id = %(id)s;

-- name: last_retry_counts
-- As last_retry_count, of many jobs.
select distinct on (a.job_id) a.job_id, a.retry_count from attempts a
where a.job_id = any(%(ids)s) order by a.job_id, a.number desc;

-- name: last_retry_count
-- How many retries a job had made before its last attempt. The job is locked.
select a.retry_count from attempts a where a.job_id = %(id)s order by a.number desc limit 1;

-- name: count_children
select count(*) from jobs where spec ? 'parent' and spec->>'parent' = %(job_id)s and ended_at is null;

-- name: list_left_children
-- Jobs whose parent was cancelled, or is being.
select c.id, c.spec->>'parent' as parent from jobs c join jobs p on p.id = c.spec->>'parent'
where c.spec ? 'parent' and c.ended_at is null and c.drain_cause is distinct from 'user_cancelled'
  and not coalesce((c.spec->>'detached')::boolean, false)
  and (p.state = 'cancelled' or p.drain_cause = 'user_cancelled')
order by c.id limit 1000;
