-- Retries: what is due when, how far a job ever got, projects, operators' rules, webhooks.

alter table jobs add column retry_at timestamptz;
alter table jobs add column best_step bigint;
alter table jobs add column no_progress integer not null default 0 check (no_progress >= 0);
alter table jobs add column retry_events boolean not null default true; -- as the policy said when the last retry was decided
alter table jobs add constraint jobs_retry_at check (retry_at is null or state = 'waiting');
-- Retries and start times are looked for apart: many due retries that a rate limit holds back must not be in the way.
drop index jobs_waiting;
create index jobs_due on jobs (wait_cause, wait_until) where state = 'waiting';
-- A project's jobs that wait their turn, for its quotas: written when a job is submitted and not again while it runs,
-- for the claim path pays for every index. What runs is few and found by jobs_live. Then the retries a kill switch holds.
create index jobs_of_project on jobs (project, state) where state in ('waiting', 'queued');
create index jobs_held on jobs (project, id) where state = 'waiting' and wait_cause = 'retries_held';

alter table attempts add column retry_count integer not null default 0 check (retry_count >= 0);
alter table attempts add column policy jsonb;
alter table attempts add column next_at timestamptz;

create table projects (
  name       text primary key,
  settings   jsonb not null default '{}',
  created_at timestamptz not null
);

-- Operators' rules of classification, as they wrote them (TOML). One row, like the settings.
alter table cluster add column rules text not null default '';

create table webhooks (
  id               text primary key,
  name             text not null default '',
  url              text not null,
  secret           text not null, -- signs every delivery, so it is kept as it is; shown once
  old_secret       text,          -- signs too until then, after a rotation
  old_secret_until timestamptz,
  events           text[] not null default '{}', -- patterns of event kinds, "job.*"; empty: all
  project          text,                         -- null: every project
  state            text not null default 'active' constraint webhooks_state_check check (state in ('active', 'paused')),
  reason           text not null default '',     -- why it is paused
  cursor           text not null,                -- the last event looked at
  created_at       timestamptz not null,
  constraint webhooks_old_secret check ((old_secret is null) = (old_secret_until is null))
);

create table webhook_deliveries (
  id           text primary key,
  webhook_id   text not null references webhooks (id) on delete cascade,
  event_id     text not null,
  event_kind   text not null,
  job_id       text,
  lane         text not null generated always as (coalesce(job_id, '')) stored, -- what is kept in order together
  seq          bigint generated always as identity, -- the order of events, as the hook's cursor passed them
  body         text not null, -- text, not jsonb: every try sends, and signs, the same bytes
  state        text not null default 'pending' constraint webhook_deliveries_state_check check (state in
    ('pending', 'delivered', 'dead')),
  tries        integer not null default 0 check (tries >= 0),
  next_at      timestamptz, -- of the oldest pending one of its lane; null: it waits behind another, or is over
  status       integer,                           -- of the last try's answer
  error        text not null default '',
  created_at   timestamptz not null,
  delivered_at timestamptz,
  unique (webhook_id, event_id),
  constraint webhook_deliveries_due check (next_at is null or state = 'pending'),
  constraint webhook_deliveries_delivered check ((state = 'delivered') = (delivered_at is not null))
) with (fillfactor = 70);
create index webhook_deliveries_due_at on webhook_deliveries (webhook_id, next_at, seq) where next_at is not null;
create unique index webhook_deliveries_one_of_lane on webhook_deliveries (webhook_id, lane) where next_at is not null;
create index webhook_deliveries_order on webhook_deliveries (webhook_id, lane, seq) where state = 'pending';
create index webhook_deliveries_dead on webhook_deliveries (webhook_id) where state = 'dead';
create index webhook_deliveries_of_hook on webhook_deliveries (webhook_id, id);
create index webhook_deliveries_created on webhook_deliveries (created_at) where state <> 'pending';
