-- The fleet: pools of hosts that are rented from providers.

-- Made once: it stands in every machine's name, so that no other Holdfast takes it for its own.
alter table cluster add column installation text not null default substr(replace(gen_random_uuid()::text, '-', ''), 1, 12);

create table pools (
  name          text primary key,
  spec          jsonb not null,
  paused_at     timestamptz,
  paused_reason text not null default '',
  deleted_at    timestamptz, -- it shrinks to nothing; the row goes with its last machine
  blocked       text not null default '', -- why the last cycle held back a host that is wanted
  cycled_at     timestamptz,
  created_at    timestamptz not null
);

-- The rental of one machine. The intent is its host's id, on record before the provider is asked.
create table instances (
  host_id       text primary key,
  pool          text not null,
  offer         text not null,
  usd_per_hour  double precision not null check (usd_per_hour >= 0),
  state         text not null constraint instances_state_check check (state in ('intended', 'asked', 'made', 'ending', 'gone')),
  ref           text,
  reason        text not null default '',
  fault         text not null default '',
  intended_at   timestamptz not null,
  asked_at      timestamptz,
  made_at       timestamptz,
  active_at     timestamptz, -- its host passed its checks for the first time
  end_asked_at  timestamptz,
  gone_at       timestamptz,
  seen_at       timestamptz,
  missing_since timestamptz,
  missing_times integer not null default 0 check (missing_times >= 0),
  constraint instances_gone_at check ((state = 'gone') = (gone_at is not null)),
  constraint instances_asked_at check (state in ('intended', 'gone') or asked_at is not null),
  constraint instances_made_ref check (state <> 'made' or ref is not null)
);
create index instances_open on instances (pool) where state <> 'gone';
create index instances_gone on instances (gone_at) where state = 'gone';

create table pool_cycles (
  pool    text not null,
  at      timestamptz not null,
  id      bigint generated always as identity,
  summary jsonb not null,
  primary key (pool, id)
);

-- How spawns ended, for the breaker. fault '': the host served.
create table pool_outcomes (
  id    bigint generated always as identity primary key,
  pool  text not null,
  offer text not null,
  at    timestamptz not null,
  fault text not null default ''
);
create index pool_outcomes_at on pool_outcomes (at);

-- Refusals in a row that an offer met since it last brought a machine.
create table offer_troubles (
  pool     text not null,
  offer    text not null,
  refusals integer not null check (refusals >= 1),
  at       timestamptz not null,
  reason   text not null default '',
  primary key (pool, offer)
);

-- A join token that is bound to one intent is good for that host alone.
alter table tokens add column host_id text;

-- Since when a host is in its state, and when its agent last held a lease. Every sync writes the second in the row that it
-- writes anyway, so a host's idle time is exact and costs the end of a job nothing.
alter table hosts add column state_at timestamptz;
update hosts set state_at = registered_at;
alter table hosts alter column state_at set not null;
alter table hosts alter column state_at set default clock_timestamp();
alter table heartbeats add column busy_at timestamptz;
