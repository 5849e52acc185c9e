-- Jobs. Each is written when it is submitted, reserved and ended, and says in one column in which state it is.
--
-- Tables that are written for every job carry no foreign keys, because each would cost a lock and a look-up per row, and the
-- writers hold the job's row locked already when they touch what hangs off it. `prune` deletes in the right order.
-- PostgreSQL reads and plans each check of a table for each statement that writes to it, so they are few, and a list of words
-- is one constant (`any ('{…}')`), which takes a quarter of the time of as many constants (`in (…)`).

-- A job's place in its queue. A requeue to the front takes a negative number from the same sequence.
create sequence job_order as bigint;

create table jobs (
  id                  text primary key,
  name                text not null,
  owner               text not null default '', -- the user of the token that submitted it; '' for what Holdfast submits itself
  project             text not null,
  queue               text not null,
  priority            smallint not null,
  place               bigint not null,
  preemptible         boolean not null default false,
  state               text not null constraint jobs_state_check check (state = any (
    '{waiting,queued,reserved,running,draining,succeeded,failed,cancelled}')),
  reason              text not null default '',
  wait_cause          text,        -- what a waiting job waits for
  wait_until          timestamptz, -- null: it waits for an event, not for a time
  retry_at            timestamptz, -- when the pending retry is due; a kill switch or a rate limit may hold it longer
  retry_events        boolean not null default true, -- as the policy said when the last retry was decided

  tasks               integer not null,
  gpus                integer not null, -- of each task, as cpu_slots and memory_bytes
  cpu_slots           integer not null,
  memory_bytes        bigint not null,
  labels              jsonb not null default '{}',
  spec                jsonb not null, -- without the values of secrets (`job_secrets`)
  spec_hash           bytea not null, -- of the whole spec, secrets included: what an idempotency key is compared by
  idempotency_key     text,
  array_id            text,    -- of a member of an array, as array_index
  array_index         integer,
  origin_run          text,    -- of a workflow's node, as origin_node
  origin_node         integer,
  awaited             boolean not null default false, -- another job waits, or has waited, for the end of this one

  epoch               bigint not null default 0, -- grows with each attempt, and with each replacement of a member
  attempts            integer not null default 0,
  retries_charged     integer not null default 0,
  watchdog_charged    integer not null default 0,
  infra_charged       integer not null default 0,
  infra_in_row        integer not null default 0, -- infrastructure failures in a row, after the second of which it backs off (BUDGET-6)
  start_failures      integer not null default 0,
  rank_charges        jsonb not null default '{}', -- rank → {"retries": n, "watchdog": n, "infra": n}
  no_progress         integer not null default 0,  -- attempts in a row that got no further than best_step
  best_step           bigint, -- the furthest step of any attempt
  avoid_hosts         text[] not null default '{}', -- used last
  barred_hosts        text[] not null default '{}', -- given up by its script: not used again in this attempt

  drain_cause         text constraint jobs_drain_cause_check check (drain_cause = any (
    '{nonzero_exit,program_error,oom_killed,image_pull_failure,setup_failed,start_timeout,app_unusable,unknown,agent_transient,gpu_fault,time_limit,
      stalled,gpu_wedged,silent_corruption,straggler,left_idle,preempted,host_drained,scaled_down,sibling_drained,user_cancelled,dependency,validation_error,
      quota_exceeded,malformed_report}')),
  drain_reason        text,
  drain_since         timestamptz,
  drain_notice_seconds double precision, -- how long its tasks have to save before they are killed; null: their grace
  drain_hard          boolean not null default false, -- without grace
  drain_operator_stop boolean not null default false, -- a person asked for the drain, so it ends the job
  trigger_rank        integer, -- the rank that the drain, or the end, began with

  outcome             text constraint jobs_outcome_check check (outcome = any (
    '{succeeded,failed,cancelled,requeued,expired}')),
  cause               text constraint jobs_cause_check check (cause = any (
    '{nonzero_exit,program_error,oom_killed,image_pull_failure,setup_failed,start_timeout,app_unusable,unknown,agent_transient,gpu_fault,time_limit,
      stalled,gpu_wedged,silent_corruption,straggler,left_idle,preempted,host_drained,scaled_down,sibling_drained,user_cancelled,dependency,validation_error,
      quota_exceeded,malformed_report}')),
  exit_code           integer,
  step                bigint, -- its newest report, with total and beat_at
  total               bigint,
  beat_at             timestamptz,
  created_at          timestamptz not null,
  queued_at           timestamptz,
  started_at          timestamptz,
  ended_at            timestamptz,
  revision            bigint not null default 0, -- grows with every change

  constraint jobs_counts check (
    least(gpus, cpu_slots, attempts, retries_charged, watchdog_charged, infra_charged, infra_in_row, start_failures, no_progress,
          array_index) >= 0
    and least(epoch, memory_bytes) >= 0 and tasks >= 1 and priority >= 0 and priority <= 100),
  -- What its state says of its other columns.
  constraint jobs_shape check (
    (state = 'waiting') = (wait_cause is not null)
    and (state = 'waiting' or wait_until is null and retry_at is null)
    and (state <> 'queued' or queued_at is not null)
    and (state <> all ('{reserved,running,draining}') or epoch >= 1 and attempts >= 1)
    and (state = 'draining') = (drain_cause is not null) and (drain_cause is null) = (drain_since is null)
    and (state = any ('{succeeded,failed,cancelled}')) = (ended_at is not null)
    and (ended_at is null or outcome is not null and outcome = state)
    and (array_id is null) = (array_index is null))
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

-- Exactly the ORDER BY of admission: the depth of a queue then costs nothing. It counts jobs, and finds the oldest, alone.
create index jobs_queued on jobs (queue, priority desc, place) include (queued_at) where state = 'queued';
-- The top of each project in each queue, for its share, without the jobs of others ahead of it.
create index jobs_queued_of_project on jobs (project, queue, priority desc, place) where state = 'queued';
create index jobs_live on jobs (queue, state) where state in ('reserved', 'running', 'draining');
-- Jobs that are being stopped count too: until they have gone, their room is held for the job that they make it for.
create index jobs_preemptible on jobs (priority) where preemptible and state in ('reserved', 'running', 'draining');
-- Retries and start times are looked for apart: many due retries that a rate limit holds back must not be in the way.
create index jobs_due on jobs (wait_cause, wait_until) where state = 'waiting';
create index jobs_held on jobs (project, id) where state = 'waiting' and wait_cause = 'retries_held'; -- by a kill switch
create index jobs_waiting on jobs (project) where state = 'waiting';
create index jobs_unhappy on jobs (id) where state in ('failed', 'cancelled');
-- The ranges of pages that have an old end: since PostgreSQL 16 such an index does not keep a row from its place.
create index jobs_ended on jobs using brin (ended_at) with (pages_per_range = 32, autosummarize = on);
create unique index jobs_idempotency on jobs (project, idempotency_key) where idempotency_key is not null;
-- How long earlier jobs of a name took. Only of jobs that their users named; no column of it ever changes.
create index jobs_named on jobs (project, name, id) where spec ? 'name' and array_id is null and not spec ? 'executor';
-- A part of a name is looked for here and not in the rows, which are ten times as many bytes.
create index jobs_names on jobs (id) include (name) where not spec ? 'executor';
-- None of the following costs a job anything that is of no array, runs no calls, awaits nothing, reads nothing and has no parent.
create unique index jobs_of_array on jobs (array_id, array_index) where array_id is not null;
create index jobs_array_state on jobs (array_id, state) where array_id is not null;
create index jobs_array_active on jobs (array_id)
  where array_id is not null and state in ('waiting', 'queued', 'reserved', 'running', 'draining')
    and (wait_cause is null or wait_cause not in ('array', 'parked'));
create index jobs_noted on jobs (id)
  where spec ? 'notify' and state in ('waiting', 'queued', 'reserved', 'running', 'draining');
create index jobs_in_line on jobs (array_id, array_index) where wait_cause = 'array';
create index jobs_executors on jobs (state, id) where spec ? 'executor'; -- the leader looks for them all the time
create index jobs_awaited on jobs (id) where awaited and state in ('succeeded', 'failed', 'cancelled'); -- until the loop has seen them
create index jobs_inputs on jobs ((spec->>'stdin')) where spec ? 'stdin'; -- a value, which lives as long as a job names it
create index jobs_supervised on jobs (id) where spec ? 'supervised'; -- that a script supervises
create index jobs_children on jobs ((spec->>'parent')) where spec ? 'parent';

-- ---- Submission and reads.

-- name: insert_jobs
-- "on conflict do nothing" without a target: a repeated id is a repeated call, a repeated key an earlier submission.
-- The queues are held as by hold_queues; where one is missing nothing is written.
-- `limited`: whether any project's or the cluster's settings set a quota, so that quotas cost nothing where there are
-- none. Without `limited_too` nothing is written where one is set.
-- `silent`: the caller needs no rows back.
-- `wait_cause`: what the job waits for besides its start time, which is kept until that wait is over.
with limits as materialized (
  select exists (select from cluster where coalesce(settings->>'quota_jobs', settings->>'quota_gpus', nullif(settings->>'at_budget', 'notice')) is not null)
    or exists (select from projects where coalesce(settings->>'quota_jobs', settings->>'quota_gpus', nullif(settings->>'at_budget', 'notice')) is not null) as limited
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
       case when b.beat_at is null then j.total else b.total end as total, coalesce(b.beat_at, j.beat_at) as beat_at,
       b.rate, b.moved_at
from jobs j left join lateral (
  select t.step, t.total, t.beat_at, t.rate, t.moved_at from tasks t where t.job_id = j.id and t.beat_at is not null
  order by t.beat_at desc, t.rank limit 1
) b on j.state in ('reserved', 'running', 'draining')
where j.id = any(%(ids)s);

-- name: list_job_ids
-- Planned anew for each call, because the conditions given decide which index serves.
select j.id from jobs j
where (%(states)s::text[] is null or j.state = any(%(states)s))
  -- Ended jobs are found by `jobs_ended`, and not among a hundred thousand that wait.
  and (not coalesce(%(states)s::text[] <@ array['succeeded', 'failed', 'cancelled'], false) or j.ended_at is not null)
  and (%(queues)s::text[] is null or j.queue = any(%(queues)s))
  and (%(projects)s::text[] is null or j.project = any(%(projects)s))
  and (%(owners)s::text[] is null or j.owner = any(%(owners)s))
  and (%(names)s::text[] is null or j.name = any(%(names)s))
  and (%(parent)s::text is null or (j.spec ? 'parent' and j.spec->>'parent' = %(parent)s))
  and (%(part)s::text is null or position(lower(%(part)s) in lower(j.name)) > 0)
  and (%(since)s::timestamptz is null or j.created_at >= %(since)s)
  and (%(prefix)s::text is null or (j.id >= %(prefix)s and starts_with(j.id, %(prefix)s)))
  and (%(labels)s::jsonb is null or j.labels @> %(labels)s)
  and (%(causes)s::text[] is null or j.cause = any(%(causes)s))
  -- Retries made or decided. The failure that ended a job was not retried, so for an ended job its last attempt counts.
  and ((%(min_retries)s::integer is null and %(max_retries)s::integer is null)
       or coalesce((select a.retry_count from attempts a
                    where j.ended_at is not null and a.job_id = j.id and a.number = j.attempts),
                   case when j.ended_at is null then j.retries_charged else 0 end)
          between coalesce(%(min_retries)s, 0) and coalesce(%(max_retries)s, 2147483647))
  and (%(host_ids)s::text[] is null or j.id in (
    select t.job_id from tasks t
    where t.host_id = any(%(host_ids)s) and t.state in ('reserved', 'running', 'preempting')))
  and (%(array_id)s::text is null or j.array_id = %(array_id)s)
  and (not %(single)s::boolean or j.array_id is null)
  and (%(executors)s::text is distinct from 'only' or j.spec ? 'executor')
  and (%(executors)s::text is distinct from 'hide' or not j.spec ? 'executor')
  and (%(family)s::text is null or j.spec->>'executor' = %(family)s)
  and (not %(supervised)s::boolean or j.spec ? 'supervised')
  and (%(before)s::text is null or j.id < %(before)s)
order by j.id desc
limit %(limit)s;

-- name: list_searched_jobs
-- Jobs that have written, the newest first; with `since`, those that had not ended a minute before it, because the last
-- bytes of a log come after the end.
select j.id from jobs j
where (%(project)s::text is null or j.project = %(project)s)
  and (%(array_id)s::text is null or j.array_id = %(array_id)s)
  and (%(since)s::timestamptz is null or j.ended_at is null or j.ended_at >= %(since)s::timestamptz - interval '1 minute')
  and (%(before)s::text is null or j.id < %(before)s)
  and exists (select from log_streams s where s.job_id = j.id and s.size > 0)
order by j.id desc
limit %(limit)s;

-- name: count_jobs
-- Unfinished jobs only: each part is a scan of an index that has no others, or of few rows. The first part names its
-- state itself, because the index has no such column, and would read every job's row for it.
select queue, 'queued' as state, count(*) from jobs where state = 'queued' group by 1
union all
select queue, state, count(*) from jobs where state in ('reserved', 'running', 'draining') group by 1, 2
union all
select queue, state, count(*) from jobs where state = 'waiting' group by 1, 2;

-- name: count_live
-- As above, of those alone that hold room.
select queue, state, count(*) from jobs where state in ('reserved', 'running', 'draining') group by 1, 2;

-- name: count_behind
-- How many jobs wait in each of these queues, up to a limit.
select q.name, (
  select count(*) from (
    select from jobs r where r.state = 'queued' and r.queue = q.name order by r.priority desc, r.place limit %(limit)s
  ) queued) as queued
from unnest(%(queues)s::text[]) as q(name);

-- name: job_exists
select from jobs where id = %(id)s;

-- name: count_children
select count(*) from jobs where spec ? 'parent' and spec->>'parent' = %(job_id)s and ended_at is null;

-- name: list_left_children
-- Jobs whose parent was cancelled, or is being.
select c.id, c.spec->>'parent' as parent from jobs c join jobs p on p.id = c.spec->>'parent'
where c.spec ? 'parent' and c.ended_at is null and c.drain_cause is distinct from 'user_cancelled'
  and not coalesce((c.spec->>'detached')::boolean, false)
  and (p.state = 'cancelled' or p.drain_cause = 'user_cancelled')
order by c.id limit 1000;

-- ---- Reads for many jobs at once. Each lateral part is one short index scan with a bound for each job.

-- name: read_queue_places
-- Reads at most 10 000 entries of the index for each job and each of the two ranges of the index that lie before it, because
-- a larger number is of no use. In the index's order, else PostgreSQL reads the whole table for a range without rows.
select me.id, least(10000, (
  select count(*) from (
    select from jobs r where r.state = 'queued' and r.queue = me.queue and r.priority > me.priority
    order by r.priority desc, r.place limit 10000
  ) above) + (
  select count(*) from (
    select from jobs r
    where r.state = 'queued' and r.queue = me.queue and r.priority = me.priority and r.place < me.place
    order by r.place limit 10000
  ) older)) as place
from jobs me where me.id = any(%(ids)s) and me.state = 'queued';

-- name: count_ahead
-- How many jobs of each of these queues come before a job, as above.
select q.name, least(%(limit)s, (
  select count(*) from (
    select from jobs r where r.state = 'queued' and r.queue = q.name and r.priority > me.priority
    order by r.priority desc, r.place limit %(limit)s
  ) above) + (
  select count(*) from (
    select from jobs r
    where r.state = 'queued' and r.queue = q.name and r.priority = me.priority and r.place < me.place
    order by r.place limit %(limit)s
  ) older)) as ahead
from jobs me cross join unnest(%(queues)s::text[]) as q(name) where me.id = %(id)s;

-- name: read_steps
-- How far running jobs are, for the time that is left to them: of each, its rank that is the least far.
select distinct on (t.job_id) t.job_id, t.step, t.total, t.rate,
       extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp()) - t.beat_at)::double precision as age_seconds
from tasks t
where t.state = 'running' and t.total is not null and t.step is not null and t.beat_at is not null and t.rate is not null
order by t.job_id, t.step;

-- ---- Admission: from queued to reserved, and back when the reservation was not offered in time.

-- name: read_candidates
-- The top of each queue by exactly the index's order, then merged: the depth of the queues does not matter.
select {candidate:c}
from unnest(%(queues)s::text[]) as q(name)
cross join lateral (
  select j.* from jobs j
  where j.state = 'queued' and j.queue = q.name and j.id not in (select unnest(%(but)s::text[]))
  order by j.priority desc, j.place
  limit %(limit)s
) c
order by c.priority desc, c.place;

-- name: read_candidates_in_quota
-- As above, without the jobs that their projects' quotas forbid now: a project at its limit would fill the list with
-- jobs that cannot start, and hide other projects' jobs behind them.
select {candidate:c}
from unnest(%(queues)s::text[]) as q(name)
cross join lateral (
  select j.* from jobs j
  left join unnest(%(projects)s::text[], %(jobs_left)s::bigint[], %(gpus_left)s::bigint[]) as l(project, jobs, gpus)
    on l.project = j.project
  where j.state = 'queued' and j.queue = q.name and j.id not in (select unnest(%(but)s::text[]))
    and (l.jobs is null or l.jobs > 0) and (l.gpus is null or j.gpus = 0 or l.gpus >= j.gpus::bigint * j.tasks)
  order by j.priority desc, j.place
  limit %(limit)s
) c
order by c.priority desc, c.place;

-- name: read_candidates_in_share
-- The top of each project that is below its share, of each queue, as far as they fit into it: the jobs of other
-- projects ahead of them do not hide them. One look into an index for each queue and project.
select {candidate:c}
from unnest(%(queues)s::text[]) as q(name)
cross join unnest(%(projects)s::text[], %(gpus)s::bigint[], %(cpu_slots)s::bigint[]) as o(project, gpus, cpu_slots)
cross join lateral (
  select j.* from jobs j
  where j.state = 'queued' and j.project = o.project and j.queue = q.name and j.id not in (select unnest(%(but)s::text[]))
  order by j.priority desc, j.place
  limit %(limit)s
) c
where case when c.gpus > 0 then c.gpus::bigint * c.tasks <= o.gpus else c.cpu_slots::bigint * c.tasks <= o.cpu_slots end
order by c.priority desc, c.place;

-- name: reserve_jobs
-- The one way from queued to reserved: job, tasks, attempt and event of each placement, where the job is still queued under
-- the epoch that its plan saw, its queue is open and, for what hosts take, the settings are those that let them (`revision`).
-- The hosts are locked, and their room is as the plan found it. A queue that is being paused or changed, and a job that
-- another transaction holds, is left alone: locks of queues come before those of hosts, so a wait here could be for ever.
-- `granted`: where a host hears of it by the answer to its sync, its lease begins.
-- The events are rows of 500, so that few are read for the events of one job.
with batches as materialized (
  select k, nextval('event_batches_n_seq') as n from generate_series(0, (cardinality(%(jobs)s::text[]) - 1) / 500) as k
), given as (
  select * from unnest(%(jobs)s::text[], %(epochs)s::bigint[], %(tasks)s::integer[], %(ttls)s::double precision[], %(homes)s::text[],
                       %(names)s::text[], %(places)s::text[]) with ordinality
    as g(job_id, epoch, tasks, ttl, host_id, hosts, host_ids, n)
), held as (
  select * from unnest(%(hosts)s::text[], %(incarnations)s::text[]) with ordinality as x(host_id, incarnation, n)
), seats as (
  select x.n, x.first, x.first + x.count - 1 as last, h.host_id, h.incarnation, coalesce(nullif(x.devices, ''), '{}')::integer[] as devices
  from unnest(%(job_numbers)s::integer[], %(host_numbers)s::integer[], %(firsts)s::integer[], %(counts)s::integer[], %(devices)s::text[])
    as x(n, host, first, count, devices)
  join held h on h.n = x.host
), open as materialized (
  select q.name from queues q
  where q.name = any(%(queues)s::text[]) and q.paused_at is null
    and (%(revision)s::bigint is null or exists (select from cluster where settings_rev = %(revision)s))
  order by q.name
  for share skip locked
), locked as materialized (
  select j.id from jobs j join given g on g.job_id = j.id
  where j.id = any(%(jobs)s::text[]) and j.state = any(%(reserve_from)s) and j.epoch = g.epoch and j.tasks = g.tasks
    and j.queue in (select name from open)
  order by j.id
  for update of j skip locked
), moved as (
  update jobs j set state = 'reserved', epoch = j.epoch + 1, attempts = j.attempts + 1,
         reason = 'reserved on ' || g.hosts || %(said)s::text,
         barred_hosts = '{}', revision = j.revision + 1, started_at = null, step = null, total = null, beat_at = null, trigger_rank = null
  from given g where j.id = any(array(select id from locked)) and j.id = g.job_id
  returning j.id, j.tasks, j.epoch, j.attempts, j.retries_charged, j.queue, j.project, j.gpus, j.cpu_slots, j.memory_bytes,
            j.reason, g.n, g.ttl, g.host_id, g.hosts, g.host_ids, coalesce((j.spec->>'supervised')::boolean, false) as supervised
), placed as (
  insert into tasks (job_id, rank, epoch, attempt, state, queue, gpus, cpu_slots, memory_bytes, host_id, incarnation,
                     devices, lease_ttl_seconds, barrier, offered_at, lease_until)
  select m.id, generate_series(s.first, s.last), m.epoch, m.attempts, 'reserved', m.queue, m.gpus, m.cpu_slots, m.memory_bytes,
         s.host_id, s.incarnation, s.devices, m.ttl, m.tasks = 1 or (m.host_id is not null and not m.supervised),
         %(granted)s::timestamptz, %(granted)s::timestamptz + m.ttl * interval '1 second'
  from moved m join seats s on s.n = m.n
), chained as (
  insert into attempts (job_id, number, parent, epoch, state, retry_count, reason, host, host_ids, road, reserved_at, taken_batch)
  select m.id, m.attempts, nullif(m.attempts - 1, 0), m.epoch, 'reserved', m.retries_charged, m.reason, m.hosts,
         case when m.host_ids is null then array_fill(m.host_id, array[m.tasks])
              else array(select jsonb_array_elements_text(m.host_ids::jsonb)) end,
         %(road)s, %(now)s::timestamptz, b.n
  from moved m join batches b on b.k = (m.n - 1) / 500
), logged as (
  insert into event_batches (n, at, kind, ids, began_ids, job_ids, attempts, epochs, host_ids, queues, projects, messages)
    overriding system value
  select b.n, %(now)s::timestamptz, 'job.reserved', array_agg(m.event_id), array_agg(null::bigint), array_agg(m.id),
         array_agg(m.attempts), array_agg(m.epoch), array_agg(m.host_id), array_agg(m.queue), array_agg(m.project),
         array_agg(m.reason)
  from (select nextval('events_id_seq') as event_id, m.* from (select * from moved order by n) m) m
  join batches b on b.k = (m.n - 1) / 500
  group by b.n
)
-- ns: which of those given were written. secrets: of what hosts take, by job, where there are some.
select array_agg(m.n) as ns, array_agg(m.attempts) as attempts,
       case when %(granted)s::timestamptz is not null then (
         select jsonb_object_agg(s.job_id, s.secrets) from job_secrets s where s.job_id = any(array(select id from moved))
       ) end as secrets
from moved m;

-- name: find_unoffered
-- Candidates only; each is checked again under its lock.
select j.id from jobs j join attempts a on a.job_id = j.id and a.number = j.attempts
where j.state = 'reserved' and a.reserved_at <= %(before)s
  and exists (select from tasks t where t.job_id = j.id and t.state = 'reserved' and t.replaced = 0
              and (t.offered_at is null or (t.claimed_at is null and not t.barrier)))
order by j.id;

-- name: read_spans
-- How long jobs of these names took, or members of these arrays: the longest of the last ten that succeeded with their
-- first attempt, of the last thousand. A job that was tried again may have gone on from a checkpoint.
select p.project, p.kin, max(s.seconds)::double precision as seconds
from unnest(%(projects)s::text[], %(kin)s::text[]) as p(project, kin) cross join lateral (
  (select extract(epoch from n.ended_at - n.started_at) as seconds from (
     select j.* from jobs j
     where j.project = p.project and j.name = p.kin and j.spec ? 'name' and j.array_id is null and not j.spec ? 'executor'
     order by j.id desc
     limit 1000
   ) n
   where n.state = 'succeeded' and n.attempts = 1
   order by n.id desc
   limit 10)
  union all
  (select extract(epoch from m.ended_at - m.started_at) from jobs m
   where m.array_id = substr(p.kin, 7) and p.kin like 'array:%%' and m.state = 'succeeded' and m.project = p.project
     and m.attempts = 1
   order by m.id desc
   limit 10)
) s
where s.seconds is not null
group by 1, 2;

-- name: read_reserved
-- Jobs that do not run yet, when their attempt was reserved, and whether an earlier attempt got past its start.
select j.id, a.reserved_at, coalesce(%(now)s::timestamptz, clock_timestamp()) as now, exists (
         select from attempts e where e.job_id = j.id and e.number < j.attempts and e.started_at is not null
           and (e.cause is null or e.cause <> all(%(unstarted)s::text[]))) as ran_before
from jobs j join attempts a on a.job_id = j.id and a.number = j.attempts
where j.state = 'reserved' and (%(ids)s::text[] is null or j.id = any(%(ids)s))
order by j.id;

-- ---- Syncs: thousands of hosts a call, one transaction, few statements, none of them per row.

-- name: finish_jobs
-- The ends of jobs of one task that succeeded, many at once: task, job, attempt and events in one statement. The moves take
-- every other end (gangs, drains, failures, stale reports), and this one must equal what they write (`runs.end_task`); the
-- conformance suite compares them. What it buys stands on top of jobs/ends.py.
with batch as materialized (
  select nextval('event_batches_n_seq') as n
), given as (
  select * from unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[], %(hosts)s::text[],
                       %(incarnations)s::text[], %(runtimes)s::double precision[], %(facts)s::text[],
                       %(steps)s::bigint[], %(totals)s::bigint[], %(ages)s::double precision[]) with ordinality
    as g(job_id, rank, epoch, host_id, incarnation, runtime, facts, step, total, beat_age, n)
), locked as (
  select j.id, j.epoch, j.state = 'reserved' as unseen from jobs j
  where j.id = any(%(jobs)s::text[]) and j.tasks = 1 and j.state = any(%(succeed_from)s)
    and j.retries_charged + j.watchdog_charged + j.infra_charged = 0 -- the moves announce a retry that succeeded
  order by j.id
  for update of j
), gone as (
  delete from tasks t using locked l, given g
  where t.job_id = any(array(select id from locked)) and t.job_id = l.id and g.job_id = l.id and g.epoch = l.epoch and t.rank = g.rank and t.epoch = g.epoch
    and t.host_id = g.host_id and t.incarnation = g.incarnation and t.state = any(%(finish_from)s)
  returning t.job_id, t.rank, t.epoch, t.attempt, t.host_id, coalesce(g.step, t.step) as step,
            coalesce(g.total, t.total) as total,
            greatest(t.beat_at, %(now)s::timestamptz - g.beat_age * interval '1 second') as beat_at, g.n, g.facts, l.unseen,
            coalesce(t.started_at, greatest(coalesce(t.offered_at, %(now)s::timestamptz),
                                            %(now)s::timestamptz - g.runtime * interval '1 second')) as started_at
), done as (
  update jobs j set
    state = 'succeeded', ended_at = %(now)s, outcome = 'succeeded', cause = null, exit_code = 0, trigger_rank = null,
    reason = case when j.attempts = 1 then 'succeeded' else 'succeeded on attempt ' || j.attempts end,
    started_at = case when g.unseen then g.started_at else j.started_at end,
    step = case when g.beat_at is null then j.step else g.step end,
    total = case when g.beat_at is null then j.total else g.total end,
    beat_at = coalesce(g.beat_at, j.beat_at), revision = j.revision + 1
  from gone g where j.id = any(array(select job_id from gone)) and j.id = g.job_id
  returning j.id, j.attempts, j.epoch, j.queue, j.project, j.reason, g.n, g.unseen, g.host_id, g.facts,
            g.step as last_step, g.total as last_total, g.started_at as began, j.origin_run, j.origin_node,
            j.array_id is not null or j.awaited and exists (select from job_dependencies w where w.parent = j.id) as awaited
), posted as (
  insert into workflow_outbox (run, node, kind, ref, due_at)
  select d.origin_run, d.origin_node, 'job', d.id, %(now)s from done d where d.origin_run is not null
), ended as (
  update attempts a set
    state = 'ended', outcome = 'succeeded', exit_code = 0, reason = d.reason, ended_at = %(now)s,
    charged_to = null, step = d.last_step, total = d.last_total, ended_batch = (select n from batch),
    started_at = case when d.unseen then d.began else a.started_at end,
    told = d.facts
  from done d
  where a.job_id = any(array(select id from done)) and a.job_id = d.id and a.number = d.attempts
), logged as (
  insert into event_batches (n, at, kind, data, ids, began_ids, job_ids, attempts, epochs, host_ids, queues, projects, messages)
    overriding system value
  select (select n from batch), %(now)s, 'job.succeeded', '{"exit_code": 0}', array_agg(d.event_id), array_agg(d.began_id),
         array_agg(d.id), array_agg(d.attempts), array_agg(d.epoch), array_agg(d.host_id), array_agg(d.queue),
         array_agg(d.project), array_agg(d.reason)
  from (select case when d.unseen then nextval('events_id_seq') end as began_id, nextval('events_id_seq') as event_id, d.*
        from (select * from done order by n) d) d
  having count(*) > 0
)
-- ns: which of those given were ended. posted: those whose end a workflow waits for. awaited: those for which another job
-- does, or the next of their array.
select array_agg(d.n) as ns, array_agg(d.n) filter (where d.origin_run is not null) as posted,
       array_agg(d.n) filter (where d.awaited) as awaited
from done d;

-- name: read_takes
-- All that a plan of takes needs, in one row: the terms, the room of these hosts, and the jobs that they may take.
select b.*, (select json_agg(r) from (
{part:room_of_takers}
) r) as rooms, c.*
from (
{part:terms_of_takes}
) b cross join (
{part:takable_jobs}
) c;

-- part: takable_jobs
-- As read_candidates, of the queues that these hosts serve (`core.placement.eligible.serves`, without a loop), as columns of one row, because hundreds are read at once and
-- most of their cost is their columns. A column that says one thing of all of them says it once. A queue that is paused
-- is asked again under its lock.
-- specs: jobs that name the same one have one spec. The members of an array share the digest of their array.
-- shuns: the hosts that a job avoids, and those that it bars; null where there are none.
with top as materialized (
  select r.* from queues q
  cross join lateral (
    select j.id, j.epoch, j.queue, j.priority, j.place, j.array_id, j.spec_hash, j.avoid_hosts, j.barred_hosts
    from jobs j
    where j.state = 'queued' and j.queue = q.name
    order by j.priority desc, j.place
    limit %(limit)s
  ) r
  where q.paused_at is null
    and ((select bool_or(h.queues = '{}') from hosts h where h.id = any(%(ids)s::text[]))
         or q.name = any(array(select unnest(h.queues) from hosts h where h.id = any(%(ids)s::text[]))))
  order by r.priority desc, r.place
  limit %(limit)s
)
select array_agg(c.id) as ids,
       case when min(c.epoch) = max(c.epoch) then array[min(c.epoch)] else array_agg(c.epoch) end as epochs,
       case when min(c.queue) = max(c.queue) then array[min(c.queue)] else array_agg(c.queue) end as queues,
       case when min(c.spec) = max(c.spec) then array[min(c.spec)] else array_agg(c.spec) end as specs,
       case when count(c.shuns) = 0 then array[null::text] else array_agg(c.shuns) end as shuns
from (
  select j.id, j.epoch, j.queue collate "C" as queue,
         case when j.array_id is null then encode(j.spec_hash, 'hex') else j.id end collate "C" as spec,
         case when j.avoid_hosts <> '{}' or j.barred_hosts <> '{}' then jsonb_build_array(j.avoid_hosts, j.barred_hosts)::text end as shuns
  from top j
  order by j.priority desc, j.place
) c;

-- name: read_takable_specs
-- One job of each spec of read_takes that this process has not seen yet.
select j.id as job_id, j.name, j.queue, j.project, j.priority, j.tasks, j.gpus, j.cpu_slots, j.memory_bytes, j.spec::text as spec
from jobs j where j.id = any(%(ids)s::text[]);

-- name: read_offered_jobs
-- The jobs of the tasks that offer_tasks, just before, offered these hosts for their start, or had offered already.
-- Found by host, so that it runs in the same round trip as the offers.
select j.id, j.name, j.queue, j.project, j.memory_bytes, j.cpu_slots, j.tasks, j.spec::text as spec,
       exists (select from checkpoints c where c.job_id = j.id) as saved
from jobs j
where j.id = any(array(
  select t.job_id from tasks t
  join unnest(%(hosts)s::text[], %(incarnations)s::text[]) as g(host_id, incarnation)
    on g.host_id = t.host_id and g.incarnation = t.incarnation
  where t.host_id = any(%(hosts)s::text[]) and t.state = 'reserved' and t.barrier));

-- name: find_drained
-- Draining jobs whose every task is confirmed (DRAIN-1), the longest draining first. The host of a task whose lease has just
-- lapsed may be heard again, with a good end (LATE-1).
select j.id, greatest(0, extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp()) - j.drain_since))::double precision as seconds
from jobs j
where j.state = 'draining'
  and not exists (select from tasks t where t.job_id = j.id and t.state in ('reserved', 'running', 'preempting'))
  and not exists (
    select from tasks t join heartbeats b on b.host_id = t.host_id
    where %(late)s > 0 and t.job_id = j.id and t.facts->>'lost' = 'lease_lapsed' and b.flagged_dead_at is null
      and t.ended_at > coalesce(%(now)s::timestamptz, clock_timestamp()) - make_interval(secs => %(late)s))
order by j.drain_since, j.id
limit %(limit)s;

-- ---- Moves: their rows are loaded and their changes written by one statement a table, for any number of rows.

-- name: lock_jobs
-- The job's row lock guards all of its tasks; it is always taken in id order and before any task's row.
select {columns:job_row:j},
       coalesce((j.spec->>'supervised')::boolean, false) as supervised,
       j.array_id is not null or j.awaited and exists (select from job_dependencies w where w.parent = j.id) as awaited,
       j.array_id is not null and exists (select from arrays r where r.id = j.array_id and r.at_once is not null) as array_limited
from jobs j
where j.id = any(%(ids)s)
order by j.id
for update of j;

-- name: lock_job_ids
-- Locks a mixed batch in one order, before the fast path writes some of the jobs and the moves write the others.
select id from jobs where id = any(%(ids)s) order by id for update;

-- name: write_jobs
update jobs j set
  {assign:job},
  place = case x.to_place when 'front' then -nextval('job_order') when 'back' then nextval('job_order') else j.place end
from jsonb_to_recordset(%(rows)s::jsonb) as x({recordset:job}, to_place text)
where j.id = any(%(ids)s) and j.id = x.id;

-- name: find_slow_drains
-- Drains whose tasks were told to stop before a time and have not confirmed it, and that are not forced yet.
select j.id from jobs j
where j.state = 'draining' and not j.drain_hard and j.drain_since <= %(before)s
  and exists (select from tasks t where t.job_id = j.id and t.state = 'preempting')
order by j.id;

-- ---- Health.

-- name: read_programs
select id, project, spec from jobs where id = any(%(jobs)s);

-- ---- Members of arrays.

-- name: find_array_members
select array_index, id from jobs where array_id = %(id)s and array_index = any(%(indices)s);

-- name: count_active
-- A statement of its own after the array's lock, so that it sees what the lock's last holder released.
select count(*) as active from jobs j
where j.array_id = %(id)s and j.state in ('waiting', 'queued', 'reserved', 'running', 'draining')
    and (j.wait_cause is null or j.wait_cause not in ('array', 'parked'));

-- name: find_in_line
select id from jobs where array_id = %(id)s and wait_cause = 'array' order by array_index limit %(limit)s;

-- name: find_uncancelled
select id from jobs
where array_id = %(id)s and state in ('waiting', 'queued', 'reserved', 'running', 'draining')
  and not (state = 'draining' and drain_cause = 'user_cancelled' and (drain_hard or not %(hard)s::boolean))
order by id limit %(limit)s;

-- name: find_failed
select id from jobs where array_id = %(id)s and state = 'failed' order by id;

-- ---- Dependencies.

-- name: find_parents
-- Jobs and arrays. An array has ended when none of its members goes on.
select id, name, ended_at is not null as ended from jobs where id = any(%(ids)s)
union all
select a.id, a.name, not exists (
  select from jobs j where j.array_id = a.id and j.state in ('waiting', 'queued', 'reserved', 'running', 'draining'))
from arrays a where a.id = any(%(ids)s);

-- name: await_jobs
-- Waits for a transaction that ends one of them, so that the loop sees either the end or the dependant. In id order,
-- as every lock on jobs is taken.
with locked as (
  select id from jobs where id = any(%(ids)s) order by id for no key update
)
update jobs j set awaited = true from locked l where j.id = l.id and not j.awaited;

-- name: find_ended_parents
-- One look into a partial index, which is nearly always empty, and one for each array that is waited for.
select id from (
  (select id from jobs where awaited and state in ('succeeded', 'failed', 'cancelled') order by id limit %(limit)s)
  union all
  (select a.id from arrays a where a.awaited and a.cancel_reason is null and not exists (
     select from jobs j where j.array_id = a.id and j.state in ('waiting', 'queued', 'reserved', 'running', 'draining'))
   order by a.id limit %(limit)s)
) e limit %(limit)s;

-- name: forget_parents
-- No new dependant of an ended job waits, so nothing can come in between.
update jobs j set awaited = false
where j.id = any(%(ids)s) and j.ended_at is not null
  and not exists (select from job_dependencies d where d.parent = j.id);

-- ---- Projects: what they use, and what is due.

-- name: use_of_projects
-- Of the projects named, or of all that unfinished jobs name: how many there are, and what runs (QUOTA-2). What waits
-- its turn is counted over its index; GPUs are read of the live jobs' rows, which are few.
with pending as (
  select p.project, count(*) as jobs from (
    select j.project from jobs j where j.state = 'queued'
    union all
    select j.project from jobs j where j.state = 'waiting'
  ) p
  where %(names)s::text[] is null or p.project = any(%(names)s)
  group by p.project
), running as (
  select j.project, count(*) as jobs, sum(j.gpus::bigint * j.tasks)::bigint as gpus,
         coalesce(sum(j.cpu_slots::bigint * j.tasks) filter (where j.gpus = 0), 0)::bigint as cpu_slots from jobs j
  where j.state in ('reserved', 'running', 'draining') and (%(names)s::text[] is null or j.project = any(%(names)s))
  group by j.project
)
select project, coalesce(p.jobs, 0) + coalesce(r.jobs, 0) as jobs, coalesce(r.jobs, 0) as running_jobs,
       coalesce(r.gpus, 0) as running_gpus, coalesce(r.cpu_slots, 0) as running_cpu_slots
from pending p full join running r using (project);

-- name: running_of_projects
-- As above, for admission: nothing but what runs.
select j.project, count(*) as running_jobs, sum(j.gpus::bigint * j.tasks)::bigint as running_gpus,
       coalesce(sum(j.cpu_slots::bigint * j.tasks) filter (where j.gpus = 0), 0)::bigint as running_cpu_slots
from jobs j
where j.state in ('reserved', 'running', 'draining') and (%(names)s::text[] is null or j.project = any(%(names)s))
group by j.project;

-- name: unfinished_of_project
-- For a hard quota (QUOTA-1): all unfinished jobs, and the GPUs they ask for.
select count(*) as jobs, coalesce(sum(u.gpus), 0)::bigint as gpus from (
  select j.id, j.gpus::bigint * j.tasks as gpus from jobs j where j.state = 'waiting' and j.project = %(name)s
  union all
  select j.id, j.gpus::bigint * j.tasks from jobs j where j.state = 'queued' and j.project = %(name)s
  union all
  select j.id, j.gpus::bigint * j.tasks from jobs j
  where j.state in ('reserved', 'running', 'draining') and j.project = %(name)s
) u
where u.id <> all(%(but)s::text[]);

-- name: list_queued_projects
-- Every project that has a queued job, one look into the index each: the number of jobs does not matter.
with recursive found(name) as (
  (select j.project from jobs j where j.state = 'queued' order by j.project limit 1)
  union all
  select (select j.project from jobs j where j.state = 'queued' and j.project > f.name order by j.project limit 1)
  from found f where f.name is not null
)
select name from found where name is not null;

-- name: project_in_use
select exists (select from jobs where project = %(name)s and state = 'queued')
    or exists (select from jobs where project = %(name)s and state = 'waiting')
    or exists (select from jobs where project = %(name)s and state in ('reserved', 'running', 'draining'));

-- name: count_waiting
select project, wait_cause, count(*) from jobs where state = 'waiting' group by 1, 2;

-- name: look_due
-- Asked at every tick: is there work? For held retries only their projects are looked up, with one index probe each, so
-- that a thousand held retries cost as much as one.
-- The statement's time is a value the indexes can be searched by; the clock's is not.
with recursive held(project) as (
  (select j.project from jobs j where j.state = 'waiting' and j.wait_cause = 'retries_held' order by j.project, j.id limit 1)
  union all
  select (select j.project from jobs j where j.state = 'waiting' and j.wait_cause = 'retries_held' and j.project > h.project
          order by j.project, j.id limit 1)
  from held h where h.project is not null
)
select c.settings as cluster,
       exists (select from jobs where state = 'waiting' and wait_cause = 'start_time'
               and wait_until <= coalesce(%(now)s::timestamptz, statement_timestamp())) as starts,
       exists (select from jobs where state = 'waiting' and wait_cause = 'back_off'
               and wait_until <= coalesce(%(now)s::timestamptz, statement_timestamp())) as retries,
       array(select project from held where project is not null) as held,
       array(select name from projects where settings @> '{"retries_enabled": false}') as off
from cluster c;

-- name: find_due_starts
-- Jobs whose start time has come, without the rows that another leader is releasing.
select id from jobs
where state = 'waiting' and wait_cause = 'start_time' and wait_until <= %(now)s
order by wait_until, id limit %(limit)s
for update skip locked;

-- name: find_due_held
-- Due retries under a kill switch; `everywhere`: the cluster's or its environment's.
select id from jobs
where state = 'waiting' and wait_cause = 'back_off' and wait_until <= %(now)s
  and (%(everywhere)s or project = any(%(off)s))
order by wait_until, id limit %(limit)s
for update skip locked;

-- name: find_resumed
-- Held retries that no kill switch holds any more.
select id from jobs
where state = 'waiting' and wait_cause = 'retries_held' and project = any(%(projects)s)
order by project, id limit %(limit)s
for update skip locked;

-- name: find_due_retries
-- Retries to dispatch, without the rows that another leader is dispatching.
select id from jobs
where state = 'waiting' and wait_cause = 'back_off' and wait_until <= %(now)s and project <> all(%(off)s)
order by wait_until, id limit %(limit)s
for update skip locked;

-- name: retries_left
select exists (
  select from jobs where state = 'waiting' and wait_cause = 'back_off' and wait_until <= %(now)s and project <> all(%(off)s)
);

-- ---- Queues.

-- name: has_unfinished
select exists (select from jobs where queue = %(name)s and state = 'queued')
    or exists (select from jobs where queue = %(name)s and state in ('reserved', 'running', 'draining'))
    or exists (select from jobs where queue = %(name)s and state = 'waiting');

-- name: running_in_queue
select id from jobs where queue = %(name)s and state in ('reserved', 'running') order by id;

-- ---- Checkpoints.

-- name: lock_checkpoint_job
-- With the rank's present epoch: a member of a supervised job has its own.
select j.state, coalesce((select t.epoch from tasks t where t.job_id = j.id and t.rank = %(rank)s::bigint), j.epoch) as epoch,
       j.attempts, j.tasks
from jobs j where j.id = %(job_id)s for update of j;

-- name: find_other_than_inputs
select n.hash from unnest(%(hashes)s::text[]) as n(hash) where n.hash not in (
  select spec->>'stdin' as stdin from jobs where spec ? 'stdin' and spec->>'stdin' = any(%(hashes)s::text[])
  union select spec->>'stdin' from arrays where spec->>'stdin' = any(%(hashes)s::text[])
  union select spec->'job'->>'stdin' from schedules where spec->'job'->>'stdin' = any(%(hashes)s::text[]));

-- ---- Webhooks.

-- name: summarize_jobs
select id, name, project, queue, state, reason, attempts as attempt, labels
from jobs where id = any(%(ids)s);

-- name: read_noted_jobs
-- The jobs, with what is told of them to people. The tail is that of the member with which the last end began.
select j.id, j.name, j.project, j.queue, j.state, j.reason, j.attempts as attempt, j.labels,
       coalesce(j.spec->'notify', '[]') as wishes,
       coalesce(p.settings->>'notify', c.settings->>'notify', '') as project_wishes,
       coalesce((
         select m.value->'facts'->>'log_tail'
         from attempts a cross join lateral jsonb_array_elements(a.members) as m(value)
         where a.job_id = j.id and a.state = 'ended'
         order by a.number desc, coalesce((m.value->>'trigger')::boolean, false) desc limit 1), '') as log_tail
from jobs j cross join cluster c left join projects p on p.name = j.project where j.id = any(%(ids)s);

-- name: list_moments
-- Unended jobs of which people are told what no event records, where it may have come and is not told to a target yet.
with wanting as (
  select j.project as name from (select distinct project from jobs
    where state in ('waiting', 'queued', 'reserved', 'running', 'draining')
      and exists (select from projects where settings->>'notify' ~ '(first-output|waits)'
                  union all select from cluster where settings->>'notify' ~ '(first-output|waits)')) j
  cross join cluster c left join projects p on p.name = j.project
  where coalesce(p.settings->>'notify', c.settings->>'notify') ~ '(first-output|waits)'
), found as (
  select id from jobs where spec ? 'notify' and state in ('waiting', 'queued', 'reserved', 'running', 'draining')
    and spec->>'notify' ~ '(first-output|waits)'
  union
  select j.id from jobs j join wanting w on w.name = j.project
  where j.state in ('waiting', 'queued', 'reserved', 'running', 'draining')
)
select j.id, j.name, j.project, j.queue, j.state, j.reason, j.attempts as attempt, j.labels,
       coalesce(j.spec->'notify', '[]') as wishes,
       coalesce(p.settings->>'notify', c.settings->>'notify', '') as project_wishes,
       -- A start time or a back-off is no wait for room.
       case when j.state = 'queued' or j.state = 'waiting' and j.attempts = 0 and j.wait_until is null
            then extract(epoch from %(now)s::timestamptz - coalesce(j.queued_at, j.created_at))::double precision end as waited_seconds,
       exists (select from log_streams s where s.job_id = j.id and s.size > 0) as has_output
from found f join jobs j on j.id = f.id cross join cluster c left join projects p on p.name = j.project
where not exists (
    select from webhook_deliveries d where d.webhook_id = any(%(hooks)s) and d.event_id = 'first-output:' || j.id)
  or not exists (
    select from webhook_deliveries d
    where d.webhook_id = any(%(hooks)s) and d.event_id = 'waits:' || j.id || ':' || j.attempts)
order by j.id desc limit %(limit)s;

-- ---- The snapshot of a cycle.

-- name: snapshot_waiting
-- Queued jobs by shape, and by which pools' `rent_after_seconds` they have waited, so that a hundred thousand alike are a few
-- rows; grouped before anything is joined or filled in, because that would be done for each of them. Those of paused queues start
-- on no host.
with afters as (
  select coalesce(array_agg(distinct a.seconds order by a.seconds), '{}') as seconds from (
    select case when p.spec ? 'rent_after_seconds' then (p.spec->>'rent_after_seconds')::double precision
      else %(rent_after)s::double precision end as seconds from pools p) a
  where a.seconds is not null
), shapes as materialized (
  select j.queue, j.project, j.tasks, j.gpus, j.cpu_slots, j.memory_bytes, j.spec->'host_labels' as host_labels,
         width_bucket(date_part('epoch', %(now)s::timestamptz - j.queued_at), a.seconds) as bucket,
         count(*) as jobs, min(j.queued_at) as queued_at, max(j.queued_at) as last_at
  from jobs j cross join afters a where j.state = 'queued'
  group by j.queue, j.project, j.tasks, j.gpus, j.cpu_slots, j.memory_bytes, j.spec->'host_labels', 8
)
select s.queue, s.project, s.jobs, s.tasks, s.gpus, s.cpu_slots, s.memory_bytes,
       coalesce(s.host_labels, '{}') as host_labels,
       greatest(0, date_part('epoch', %(now)s::timestamptz - s.queued_at)) as oldest_seconds,
       greatest(0, date_part('epoch', %(now)s::timestamptz - s.last_at)) as newest_seconds
from shapes s join queues q on q.name = s.queue
where q.paused_at is null
order by s.queue, s.project, s.tasks, s.gpus, s.cpu_slots, s.memory_bytes, 8, 9;

-- ---- Upkeep.

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

-- name: prune_jobs
delete from jobs where id = any(%(ids)s);

-- name: gauge_oldest_queued
select coalesce(extract(epoch from coalesce(%(now)s, clock_timestamp()) - min(queued_at)), 0)::double precision
from jobs where state = 'queued';

-- name: settle_drains
with ahead as (
  select id from jobs
  where state = 'draining' and drain_since > coalesce(%(now)s::timestamptz, clock_timestamp())
  order by id for update
)
update jobs j set drain_since = least(j.drain_since, coalesce(%(now)s::timestamptz, clock_timestamp()))
from ahead where j.id = ahead.id;
