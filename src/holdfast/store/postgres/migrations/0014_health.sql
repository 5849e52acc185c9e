-- The health of hosts: what their checks found, how tasks ended on them, and which are set aside for it.
create table host_checks (
  host_id     text not null,
  number      text not null, -- the order's; a report that is repeated is one
  incarnation text not null,
  at          timestamptz not null,
  kind        text not null constraint host_checks_kind_check check (kind in ('preflight', 'periodic', 'failures')),
  verdict     text not null constraint host_checks_verdict_check check (verdict in ('ok', 'warn', 'fail')),
  message     text not null default '',
  results     jsonb not null default '[]',
  measured    jsonb not null default '{}',
  primary key (host_id, number)
);
create index host_checks_newest on host_checks (host_id, at desc);
create index host_checks_at on host_checks (at);

create table host_ends (
  host_id text not null,
  hour    timestamptz not null,
  passed  integer not null check (passed >= 0),
  failed  integer not null check (failed >= 0),
  primary key (host_id, hour)
);

-- Tasks that failed by themselves, as their agents count them: an index over attempts would cost the end of every job.
create table host_failures (
  host_id text not null,
  job_id  text not null,
  attempt integer not null,
  at      timestamptz not null,
  primary key (host_id, job_id, attempt)
);
create index host_failures_at on host_failures (at);

-- Hosts that were quarantined by evidence. kind jobs: time lets them back, on probation; checks: a check that passes.
create table host_asides (
  id       bigint generated always as identity primary key,
  host_id  text not null,
  kind     text not null constraint host_asides_kind_check check (kind in ('jobs', 'checks')),
  at       timestamptz not null,
  until    timestamptz not null,
  ended_at timestamptz,
  reason   text not null,
  jobs     text[] not null default '{}'
);
create unique index host_asides_open on host_asides (host_id) where ended_at is null;
