-- Runs of workflows. A node's row changes three or four times, and no index depends on what changes.
create table workflow_runs (
  id          text primary key,
  name        text not null,
  project     text not null,
  state       text not null constraint workflow_runs_state_check
              check (state in ('running', 'failing', 'cancelling', 'succeeded', 'failed', 'cancelled')),
  reason      text not null default '',
  on_failure  text not null constraint workflow_runs_on_failure_check
              check (on_failure in ('cancel_queued', 'cancel_all', 'continue')),
  nodes       integer not null check (nodes >= 1),
  unended     integer not null check (unended between 0 and nodes),
  failed_node integer,
  out_dir     text not null default '',
  labels      jsonb not null default '{}',
  spec_hash   bytea not null,
  created_at  timestamptz not null,
  ended_at    timestamptz,
  constraint workflow_runs_ended_check check ((unended = 0) = (state in ('succeeded', 'failed', 'cancelled')))
) with (fillfactor = 70);
create index workflow_runs_ended on workflow_runs (ended_at) where ended_at is not null;

create table workflow_nodes (
  run        text not null references workflow_runs on delete cascade,
  number     integer not null,
  name       text not null,
  kind       text not null constraint workflow_nodes_kind_check check (kind in ('call', 'map', 'job', 'ask')),
  state      text not null constraint workflow_nodes_state_check
             check (state in ('waiting', 'ready', 'started', 'succeeded', 'skipped', 'failed', 'cancelled')),
  waiting_on integer not null check (waiting_on >= 0),
  ref        text,
  rounds     integer not null default 0,
  spec       text not null,
  result     text,
  reason     text not null default '',
  started_at timestamptz,
  ended_at   timestamptz,
  primary key (run, number)
) with (fillfactor = 60);
create unique index workflow_nodes_name on workflow_nodes (run, name);

create table workflow_edges (
  run    text not null references workflow_runs on delete cascade,
  parent integer not null,
  child  integer not null,
  primary key (run, parent, child)
);
create index workflow_edges_child on workflow_edges (run, child, parent);

-- What was taken out of the outbox because it could not be processed.
create table workflow_set_aside (
  n        bigint primary key,
  run      text not null,
  node     integer not null,
  kind     text not null,
  ref      text not null,
  tries    integer not null,
  error    text not null,
  at       timestamptz not null
);

create index workflow_outbox_run on workflow_outbox (run, due_at, n);

-- The workflow node that a job belongs to.
alter table jobs add column origin_run text, add column origin_node integer;
