-- Loading rows for a move, and writing what it changed: one statement per table, whatever the number of rows.

-- name: lock_jobs
-- The job's row is the lock of everything that moves its tasks; always taken in id order, before any task's row.
select j.id, j.project, j.queue, j.tasks, j.created_at, j.state, j.reason, j.epoch, j.attempts, j.retries_charged,
       j.watchdog_charged, j.infra_charged, j.avoid_hosts, j.barred_hosts, coalesce((j.spec->>'supervised')::boolean, false) as supervised, j.wait_cause, j.wait_until, j.retry_at,
       j.retry_events, j.best_step, j.no_progress, j.rank_charges, j.start_failures, j.drain_cause, j.drain_reason,
       j.drain_since, j.drain_hard, j.drain_operator_stop, j.trigger_rank, j.outcome, j.cause, j.exit_code, j.step, j.total,
       j.beat_at, j.queued_at, j.started_at, j.ended_at, j.revision
from jobs j
where j.id = any(%(ids)s)
order by j.id
for update of j;

-- name: lock_job_ids
-- Takes the locks of a mixed batch in one order, before the fast path touches some of the jobs and the moves the others.
select id from jobs where id = any(%(ids)s) order by id for update;

-- name: lock_tasks
-- After the jobs' locks and in a statement of its own, so that it reads what the last holder of them wrote.
-- The tasks are locked too: offers and renewals write them without the job's lock.
select t.job_id, t.rank, t.epoch, t.attempt, t.state, t.queue, t.gpus, t.cpu_slots, t.memory_bytes, t.host_id,
       h.name as host_name, t.incarnation, t.devices, t.lease_ttl_seconds, t.lease_until, t.offered_at, t.claimed_at,
       t.barrier, t.port, t.started_at,
       t.ended_at, t.step, t.total, t.beat_at, t.section, t.facts, t.replaced, t.reserved_at, t.ready_at, t.start_failures, t.stop_cause,
       t.stop_reason, t.stop_hard
from tasks t left join hosts h on h.id = t.host_id
where t.job_id = any(%(ids)s)
order by t.job_id, t.rank
for update of t;

-- name: write_jobs
update jobs j set
  state = x.state, reason = x.reason, epoch = x.epoch, attempts = x.attempts, retries_charged = x.retries_charged,
  watchdog_charged = x.watchdog_charged, infra_charged = x.infra_charged, avoid_hosts = x.avoid_hosts,
  barred_hosts = x.barred_hosts,
  wait_cause = x.wait_cause, wait_until = x.wait_until, retry_at = x.retry_at, retry_events = x.retry_events,
  best_step = x.best_step, no_progress = x.no_progress, rank_charges = x.rank_charges,
  start_failures = x.start_failures, drain_cause = x.drain_cause, drain_reason = x.drain_reason,
  drain_since = x.drain_since, drain_hard = x.drain_hard, drain_operator_stop = x.drain_operator_stop,
  trigger_rank = x.trigger_rank, outcome = x.outcome, cause = x.cause, exit_code = x.exit_code, step = x.step,
  total = x.total, beat_at = x.beat_at, queued_at = x.queued_at, started_at = x.started_at, ended_at = x.ended_at,
  revision = x.revision,
  ord = case x.to_place when 'front' then -nextval('job_order') when 'back' then nextval('job_order') else j.ord end
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  id text, state text, reason text, epoch bigint, attempts integer, retries_charged integer, watchdog_charged integer,
  infra_charged integer, avoid_hosts text[], barred_hosts text[], wait_cause text, wait_until timestamptz,
  retry_at timestamptz, retry_events boolean, best_step bigint, no_progress integer,
  rank_charges jsonb, start_failures integer, drain_cause text,
  drain_reason text, drain_since timestamptz, drain_hard boolean, drain_operator_stop boolean, trigger_rank integer,
  outcome text, cause text, exit_code integer, step bigint, total bigint, beat_at timestamptz, queued_at timestamptz,
  started_at timestamptz, ended_at timestamptz, revision bigint, to_place text)
where j.id = x.id;

-- name: write_tasks
-- Devices are not a move's to write. The rows were locked when they were loaded, so a beat written back is never older.
update tasks t set
  state = x.state, lease_until = x.lease_until, offered_at = x.offered_at, claimed_at = x.claimed_at,
  barrier = x.barrier, port = x.port, started_at = x.started_at,
  ended_at = x.ended_at, facts = x.facts, step = x.step, total = x.total, beat_at = x.beat_at,
  section = x.section
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  job_id text, rank integer, state text, lease_until timestamptz, offered_at timestamptz, claimed_at timestamptz, barrier boolean, port integer, started_at timestamptz,
  ended_at timestamptz, facts jsonb, step bigint, total bigint, beat_at timestamptz,
  section text)
where t.job_id = x.job_id and t.rank = x.rank;

-- name: rewrite_tasks
-- A member of a supervised job that loses or gets its place: everything of the row that can change.
update tasks t set
  epoch = x.epoch, state = x.state, host_id = x.host_id, incarnation = x.incarnation, devices = x.devices,
  lease_ttl_seconds = x.lease_ttl_seconds, lease_until = x.lease_until, offered_at = x.offered_at,
  claimed_at = x.claimed_at, barrier = x.barrier, port = x.port, started_at = x.started_at, ended_at = x.ended_at,
  step = x.step, total = x.total, beat_at = x.beat_at, section = x.section, facts = x.facts, replaced = x.replaced,
  reserved_at = x.reserved_at, ready_at = x.ready_at, start_failures = x.start_failures, stop_cause = x.stop_cause, stop_reason = x.stop_reason,
  stop_hard = x.stop_hard
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  job_id text, rank integer, epoch bigint, state text, host_id text, incarnation text, devices integer[],
  lease_ttl_seconds double precision, lease_until timestamptz, offered_at timestamptz, claimed_at timestamptz,
  barrier boolean, port integer, started_at timestamptz, ended_at timestamptz, step bigint, total bigint,
  beat_at timestamptz, section text, facts jsonb, replaced integer, reserved_at timestamptz, ready_at timestamptz,
  start_failures integer, stop_cause text, stop_reason text, stop_hard boolean)
where t.job_id = x.job_id and t.rank = x.rank;

-- name: write_replacements
insert into replacements (job_id, rank, epoch, attempt, number, host_id, at)
select x.job_id, x.rank, x.epoch, x.attempt, x.number, x.host_id, %(now)s
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  job_id text, rank integer, epoch bigint, attempt integer, number integer, host_id text);

-- name: find_members
-- Members of supervised jobs about which something is to be decided: those that fell, and replacements that do not start.
select t.job_id, t.rank, t.state <> 'reserved' as fallen,
       greatest(0, extract(epoch from clock_timestamp() - case when t.state = 'reserved' then t.reserved_at else t.ended_at end))
         ::double precision as seconds
from tasks t join jobs j on j.id = t.job_id
where j.state in ('reserved', 'running')
  and (t.state in ('failed', 'preempted') or (t.state = 'reserved' and t.replaced > 0))
order by t.state = 'reserved', t.job_id, t.rank -- who has a place keeps nobody waiting who has none
limit %(limit)s;

-- name: find_unoffered_members
select distinct t.job_id as id from tasks t join jobs j on j.id = t.job_id
where t.state = 'reserved' and t.replaced > 0 and t.offered_at is null and t.reserved_at <= %(before)s
  and j.state in ('reserved', 'running')
order by t.job_id;

-- name: clear_tasks
delete from tasks where job_id = any(%(ids)s);

-- name: write_attempts
update attempts a set
  state = x.state, outcome = coalesce(x.outcome, a.outcome), cause = coalesce(x.cause, a.cause),
  rule = coalesce(x.rule, a.rule), charged_to = coalesce(x.charged_to, a.charged_to),
  policy = coalesce(x.policy, a.policy), next_at = coalesce(x.next_at, a.next_at),
  exit_code = coalesce(x.exit_code, a.exit_code), reason = coalesce(x.reason, a.reason),
  trigger_rank = coalesce(x.trigger_rank, a.trigger_rank), members = coalesce(x.members, a.members),
  step = coalesce(x.step, a.step), total = coalesce(x.total, a.total),
  started_at = coalesce(x.started_at, a.started_at), ended_at = coalesce(x.ended_at, a.ended_at)
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  job_id text, number integer, state text, outcome text, cause text, rule text, charged_to text, policy jsonb,
  next_at timestamptz, exit_code integer, reason text, trigger_rank integer, members jsonb, step bigint, total bigint, started_at timestamptz,
  ended_at timestamptz)
where a.job_id = x.job_id and a.number = x.number;

-- name: write_events
-- The recordset keeps the array's order, so ids follow the order the moves were made in.
insert into events (at, kind, job_id, attempt, epoch, rank, host_id, queue, project, message, data)
select %(now)s, x.kind, x.job_id, x.attempt, x.epoch, x.rank, x.host_id, x.queue, x.project, coalesce(x.message, ''),
       coalesce(x.data, '{}')
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  kind text, job_id text, attempt integer, epoch bigint, rank integer, host_id text, queue text, project text,
  message text, data jsonb);

-- name: read_now
select coalesce(%(now)s::timestamptz, clock_timestamp());

-- name: find_slow_drains
-- Drains whose tasks were told to stop before a time and have not confirmed it, and that are not forced yet.
select j.id from jobs j
where j.state = 'draining' and not j.drain_hard and j.drain_since <= %(before)s
  and exists (select from tasks t where t.job_id = j.id and t.state = 'preempting')
order by j.id;
