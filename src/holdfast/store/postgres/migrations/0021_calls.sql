-- Calls of Python functions. A call has no row of its own: calls are submitted in pages, wait as ranges, run as pieces of
-- a batch and end as runs of neighbours, so that what is written grows with messages and not with calls. A call is named
-- by its set's number and its index. Ranges are half open, [first, last).

create sequence call_order as bigint; -- the place of each submission among those of its feed and priority

-- Calls that wait for one family of executors and one model. Few rows.
create table call_feeds (
  id                bigint generated always as identity primary key,
  family_name       text not null,
  model             text not null default '', -- empty: none
  family            jsonb not null,
  vram_gb           double precision not null default 0,
  cold_wait_seconds double precision, -- null: the default
  served_at         timestamptz, -- about when a batch was last taken from it
  unique (family_name, model)
);

-- The counts are written in the transaction of each end, the last statement before its commit, so that the row is locked
-- only for the commit: the transaction that ends the last call must know that it does.
create table call_sets (
  n             bigint generated always as identity primary key,
  id            text not null unique,
  feed          bigint not null,
  queue         text not null,
  project       text not null,
  function      text not null,
  priority      smallint not null check (priority between 0 and 100),
  spec          jsonb not null,
  count         integer check (count >= 0), -- null: not known yet
  submitted     integer not null default 0,
  succeeded     integer not null default 0,
  failed        integer not null default 0,
  cancelled     integer not null default 0,
  run           text, -- the workflow's node that it belongs to
  node          integer,
  created_at    timestamptz not null,
  cancelled_at  timestamptz, -- as a whole
  cancel_reason text not null default '',
  ended_at      timestamptz,
  constraint call_sets_counts check (succeeded >= 0 and failed >= 0 and cancelled >= 0
    and succeeded + failed + cancelled <= submitted and (count is null or submitted <= count)),
  constraint call_sets_ended check (ended_at is null or (count is not null and succeeded + failed + cancelled = count))
) with (fillfactor = 50);
create index call_sets_of_project on call_sets (project, id);
create index call_sets_ended_at on call_sets (ended_at) where ended_at is not null; -- written once a set

-- Arguments as they were submitted: a JSON array of JSON texts, of neighbouring calls.
create table call_pages (
  set_n bigint not null,
  first integer not null check (first >= 0),
  last  integer not null,
  args  text not null,
  primary key (set_n, first),
  check (last > first)
);

-- Calls that are ready, by feed in the order in which they are handed out. A claim takes from the front, so it moves `first`
-- and leaves the key alone (HOT), or deletes the row. attempts: of the calls in it so far.
create table call_ready (
  feed     bigint not null,
  rank     smallint not null, -- 100 - priority
  ord      bigint not null,
  set_n    bigint not null,
  last     integer not null,
  first    integer not null,
  page     integer not null, -- `first` of the page with its arguments
  attempts smallint not null default 0,
  since    timestamptz not null,
  primary key (feed, rank, ord, set_n, last),
  check (last > first)
) with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);

-- Calls that back off, one by one.
create table call_waiting (
  set_n    bigint not null,
  index    integer not null,
  due_at   timestamptz not null,
  feed     bigint not null,
  rank     smallint not null,
  ord      bigint not null,
  page     integer not null,
  attempts smallint not null,
  held     boolean not null default false, -- by a kill switch, which is asked again when it is due
  primary key (set_n, index)
);
create index call_waiting_due on call_waiting (due_at);

-- Open batches only: what an executor holds. pieces: [set_n, first, last, page, rank, ord, attempts, since], positions
-- count through them. ended: ranges of positions whose end is on record. cancelled: ranges that were asked to stop.
create table call_batches (
  id         bigint generated always as identity primary key,
  job_id     text not null,
  task_rank  integer not null,
  epoch      bigint not null,
  host_id    text not null,
  feed       bigint not null,
  sets       bigint[] not null,
  pieces     jsonb not null,
  ended      jsonb not null default '[]',
  cancelled  jsonb not null default '[]',
  began_at   timestamptz not null,
  left_at    timestamptz -- its executor was found gone; it is returned a little later, after a closing report could come
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200);
create index call_batches_of_job on call_batches (job_id);

-- Ended calls: neighbours that ended alike, in one report. results: a JSON array of JSON texts; null without any.
create table call_results (
  set_n    bigint not null,
  first    integer not null,
  last     integer not null,
  state    smallint not null check (state in (1, 2, 3)), -- `CallState`
  attempts smallint not null,
  results  text,
  reason   text not null default '',
  ended_at timestamptz not null,
  primary key (set_n, first),
  check (last > first)
);

-- What a call's budgets were charged, from its first failure until it is tried anew by a person.
create table call_charges (
  set_n   bigint not null,
  index   integer not null,
  charges jsonb not null,
  primary key (set_n, index)
);

-- Each failed attempt of a call, for its chain.
create table call_failures (
  set_n      bigint not null,
  index      integer not null,
  n          bigint generated always as identity,
  attempt    smallint not null,
  host_id    text not null default '',
  job_id     text not null default '', -- the executor
  cause      text not null,
  rule       text not null default '',
  charged_to text not null default '',
  reason     text not null,
  detail     text not null default '', -- the end of a traceback
  began_at   timestamptz not null,
  ended_at   timestamptz not null,
  primary key (set_n, index, n)
);

-- What workflows are to hear: written in the transaction of the end it tells, and deleted when it is carried out.
create table workflow_outbox (
  n      bigint generated always as identity primary key,
  run    text not null,
  node   integer not null,
  kind   text not null,
  ref    text not null,
  tries  smallint not null default 0,
  due_at timestamptz not null default now(),
  error  text
);
