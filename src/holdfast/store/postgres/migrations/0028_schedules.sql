-- Schedules: jobs that are submitted again and again.

create table schedules (
  id            text not null unique,
  name          text primary key,
  project       text not null,
  queue         text not null,
  spec          jsonb not null, -- without the values of secrets
  secrets       jsonb not null default '{}',
  anchor        timestamptz not null, -- what intervals are counted from
  next_at       timestamptz not null,
  paused_at     timestamptz,
  paused_reason text not null default '',
  last_at       timestamptz,
  last_outcome  text,
  last_reason   text not null default '',
  last_job_id   text,
  created_at    timestamptz not null
);
create index schedules_due on schedules (next_at) where paused_at is null;

-- What became of each time (TIME-1: a time is there once).
create table schedule_runs (
  schedule_id text not null,
  due_at      timestamptz not null,
  at          timestamptz not null,
  outcome     text not null constraint schedule_runs_outcome_check check (outcome in ('submitted', 'skipped', 'refused')),
  reason      text not null default '',
  job_id      text,
  primary key (schedule_id, due_at),
  constraint schedule_runs_job check ((outcome = 'submitted') = (job_id is not null))
);
create index schedule_runs_at on schedule_runs (at);
