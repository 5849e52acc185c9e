-- The spine: settings, queues, jobs and their attempts, hosts, the event record, logs, tokens.
--
-- Tables that are written for every job carry no foreign keys: each would cost a lock and a look-up per row, and the
-- writers already hold the job's row locked when they touch what hangs off it. `prune` deletes in the right order.

create table cluster (
  id           smallint primary key default 1 check (id = 1),
  settings     jsonb  not null default '{}',
  settings_rev bigint not null default 1 check (settings_rev >= 1)
);
insert into cluster default values;

create table queues (
  name          text primary key,
  settings      jsonb not null default '{}',
  paused_at     timestamptz,
  paused_reason text not null default '',
  hard          boolean not null default false,
  created_at    timestamptz not null default clock_timestamp()
);

-- A job's place in its queue. A requeue to the front takes a negative number from the same sequence.
create sequence job_order as bigint;

create table jobs (
  id                  text primary key,
  name                text not null,
  project             text not null,
  queue               text not null,
  priority            smallint not null check (priority between 0 and 100),
  ord                 bigint not null default nextval('job_order'),
  state               text not null constraint jobs_state_check check (state in
    ('waiting', 'queued', 'reserved', 'running', 'draining', 'succeeded', 'failed', 'cancelled')),
  reason              text not null default '',
  tasks               integer not null check (tasks >= 1),
  gpus                integer not null check (gpus >= 0),
  cpu_slots           integer not null check (cpu_slots >= 0),
  memory_bytes        bigint not null check (memory_bytes >= 0),
  labels              jsonb not null default '{}',
  spec                jsonb not null, -- without the values of secrets
  spec_hash           bytea not null, -- of the whole spec, secrets included: what an idempotency key is compared by
  idempotency_key     text,
  epoch               bigint not null default 0 check (epoch >= 0),
  attempts            integer not null default 0 check (attempts >= 0),
  retries_charged     integer not null default 0 check (retries_charged >= 0),
  watchdog_charged    integer not null default 0 check (watchdog_charged >= 0),
  infra_charged       integer not null default 0 check (infra_charged >= 0),
  avoid_hosts         text[] not null default '{}',
  wait_cause          text,
  wait_until          timestamptz,
  drain_cause         text constraint jobs_drain_cause_check check (drain_cause in
    ('nonzero_exit', 'oom_killed', 'image_pull_failure', 'start_timeout', 'unknown', 'agent_transient', 'gpu_fault',
     'time_limit', 'stalled', 'gpu_wedged', 'preempted', 'host_drained', 'scaled_down', 'sibling_drained',
     'user_cancelled', 'validation_error', 'quota_exceeded', 'malformed_report')),
  drain_reason        text,
  drain_since         timestamptz,
  drain_hard          boolean not null default false,
  drain_operator_stop boolean not null default false,
  trigger_rank        integer,
  outcome             text constraint jobs_outcome_check check (outcome in
    ('succeeded', 'failed', 'cancelled', 'requeued', 'expired')),
  cause               text constraint jobs_cause_check check (cause in
    ('nonzero_exit', 'oom_killed', 'image_pull_failure', 'start_timeout', 'unknown', 'agent_transient', 'gpu_fault',
     'time_limit', 'stalled', 'gpu_wedged', 'preempted', 'host_drained', 'scaled_down', 'sibling_drained',
     'user_cancelled', 'validation_error', 'quota_exceeded', 'malformed_report')),
  exit_code           integer,
  step                bigint,
  total               bigint,
  beat_at             timestamptz,
  created_at          timestamptz not null,
  queued_at           timestamptz,
  started_at          timestamptz,
  ended_at            timestamptz,
  revision            bigint not null default 0,
  constraint jobs_waiting_says_why check ((state = 'waiting') = (wait_cause is not null)),
  constraint jobs_waiting_says_until check (wait_until is null or state = 'waiting'),
  constraint jobs_queued_since check (state <> 'queued' or queued_at is not null),
  constraint jobs_draining_since check ((state = 'draining') = (drain_since is not null)),
  constraint jobs_draining_says_why check ((state = 'draining') = (drain_cause is not null)),
  constraint jobs_ended_at check ((state in ('succeeded', 'failed', 'cancelled')) = (ended_at is not null)),
  constraint jobs_ended_outcome check (ended_at is null or (outcome is not null and outcome = state)),
  constraint jobs_live_epoch check (state not in ('reserved', 'running', 'draining') or (epoch >= 1 and attempts >= 1))
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

-- Exactly the ORDER BY of admission: the depth of a queue then costs nothing.
create index jobs_queued on jobs (queue, priority desc, ord) where state = 'queued';
create index jobs_live on jobs (queue, state) where state in ('reserved', 'running', 'draining');
create index jobs_waiting on jobs (wait_until) where state = 'waiting';
create index jobs_unhappy on jobs (id) where state in ('failed', 'cancelled');
create index jobs_ended on jobs (ended_at) where ended_at is not null;
create unique index jobs_idempotency on jobs (project, idempotency_key) where idempotency_key is not null;

create table job_secrets (
  job_id  text primary key,
  secrets jsonb not null
);

-- Only the tasks of live attempts: the hot table stays as small as the fleet. Renewals touch no indexed column (HOT).
create table tasks (
  job_id            text not null,
  rank              integer not null check (rank >= 0),
  epoch             bigint not null check (epoch >= 1),
  attempt           integer not null check (attempt >= 1),
  state             text not null constraint tasks_state_check check (state in
    ('blocked', 'reserved', 'running', 'done', 'failed', 'preempting', 'preempted')),
  queue             text not null,
  gpus              integer not null,
  cpu_slots         integer not null,
  memory_bytes      bigint not null,
  host_id           text,
  incarnation       text,
  devices           integer[] not null default '{}',
  lease_ttl_seconds double precision not null check (lease_ttl_seconds > 0),
  lease_until       timestamptz, -- null until the first offer: nobody has a lease that was never told of it
  offered_at        timestamptz,
  started_at        timestamptz,
  ended_at          timestamptz,
  step              bigint,
  total             bigint,
  beat_at           timestamptz,
  section           text,
  facts             jsonb,
  primary key (job_id, rank),
  constraint tasks_lease_has_host check (state = 'blocked' or (host_id is not null and incarnation is not null)),
  constraint tasks_ended_at check ((state in ('done', 'failed', 'preempted')) = (ended_at is not null)),
  constraint tasks_offer_has_lease check ((offered_at is null) = (lease_until is null))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);

create index tasks_of_host on tasks (host_id);
create index tasks_orders on tasks (host_id) where state in ('reserved', 'preempting');

create table attempts (
  job_id       text not null,
  number       integer not null check (number >= 1),
  parent       integer check (parent >= 1 and parent < number),
  epoch        bigint not null check (epoch >= 1),
  state        text not null constraint attempts_state_check check (state in
    ('reserved', 'running', 'draining', 'ended')),
  outcome      text constraint attempts_outcome_check check (outcome in
    ('succeeded', 'failed', 'cancelled', 'requeued', 'expired')),
  cause        text constraint attempts_cause_check check (cause in
    ('nonzero_exit', 'oom_killed', 'image_pull_failure', 'start_timeout', 'unknown', 'agent_transient', 'gpu_fault',
     'time_limit', 'stalled', 'gpu_wedged', 'preempted', 'host_drained', 'scaled_down', 'sibling_drained',
     'user_cancelled', 'validation_error', 'quota_exceeded', 'malformed_report')),
  rule         text,
  charged_to   text constraint attempts_charged_to_check check (charged_to in
    ('retries', 'infra', 'watchdog', 'nothing', 'never')),
  exit_code    integer,
  reason       text not null default '',
  host         text,
  host_ids     text[] not null default '{}', -- by rank
  trigger_rank integer,
  members      jsonb not null default '[]',
  step         bigint,
  total        bigint,
  reserved_at  timestamptz not null,
  started_at   timestamptz,
  ended_at     timestamptz,
  primary key (job_id, number),
  unique (job_id, epoch),
  constraint attempts_ended check ((state = 'ended') = (ended_at is not null)),
  constraint attempts_ended_outcome check ((state = 'ended') = (outcome is not null))
) with (fillfactor = 85);

create table hosts (
  id            text primary key,
  name          text not null,
  key_hash      bytea,
  pool          text not null,
  state         text not null constraint hosts_state_check check (state in
    ('spawning', 'preflight', 'active', 'draining', 'terminated', 'quarantined', 'error')),
  reason        text not null default '',
  queues        text[] not null default '{}', -- empty: every lane
  labels        jsonb not null default '{}',
  cpu_slots     integer not null check (cpu_slots >= 0),
  memory_bytes  bigint not null check (memory_bytes >= 0),
  gpus          jsonb not null default '[]',
  address       text not null default '',
  version       text not null default '',
  probe         text not null default 'real' constraint hosts_probe_check check (probe in ('real', 'scripted')),
  registered_at timestamptz not null
);
create unique index hosts_key on hosts (key_hash) where key_hash is not null;
create index hosts_name on hosts (name);

-- Written at every sync, so narrow and HOT. Its row is also the host's lock: whoever changes a host's state or
-- incarnation, or places work there, locks this row first.
create table heartbeats (
  host_id         text primary key,
  incarnation     text not null,
  heartbeat_at    timestamptz not null,
  flagged_dead_at timestamptz
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- Append-only. STORE-4: a reader sees only events whose transaction no older one can still commit after.
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
create index events_of_no_job on events (at) where job_id is null;

create table log_streams (
  job_id  text not null,
  attempt integer not null,
  rank    integer not null,
  stream  text not null,
  size    bigint not null default 0 check (size >= 0),
  kept    bigint not null default 0 check (kept >= 0),
  ended   boolean not null default false,
  primary key (job_id, attempt, rank, stream)
);

create table log_chunks (
  job_id   text not null,
  attempt  integer not null,
  rank     integer not null,
  stream   text not null,
  "offset" bigint not null check ("offset" >= 0),
  length   integer not null check (length > 0),
  data     bytea not null,
  primary key (job_id, attempt, rank, stream, "offset"),
  constraint log_chunks_length check (length = octet_length(data))
);

create table forensics (
  job_id   text not null,
  attempt  integer not null,
  rank     integer not null,
  epoch    bigint not null,
  reason   text not null,
  seconds  double precision not null,
  sections jsonb not null,
  at       timestamptz not null,
  primary key (job_id, attempt, rank)
);

create table tokens (
  id          text primary key,
  role        text not null constraint tokens_role_check check (role in ('admin', 'submit', 'read', 'join')),
  name        text not null default '',
  secret_hash bytea not null unique check (octet_length(secret_hash) = 32),
  created_at  timestamptz not null,
  expires_at  timestamptz,
  used_at     timestamptz,
  revoked_at  timestamptz
);
