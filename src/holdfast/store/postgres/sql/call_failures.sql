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

-- name: insert_call_failures
insert into call_failures (set_n, index, attempt, host_id, job_id, cause, rule, charged_to, reason, detail, began_at, ended_at)
select x.set_n, x.index, x.attempt, x.host_id, x.job_id, x.cause, x.rule, x.charged_to, x.reason, x.detail, x.began_at, x.ended_at
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  set_n bigint, index integer, attempt smallint, host_id text, job_id text, cause text, rule text, charged_to text,
  reason text, detail text, began_at timestamptz, ended_at timestamptz);

-- name: list_call_failures
select f.attempt, f.host_id, (select h.name from hosts h where h.id = f.host_id) as host, f.job_id, f.cause, f.rule, f.charged_to, f.reason, f.detail, f.began_at, f.ended_at
from call_failures f
where f.set_n = (select n from call_sets where id = %(id)s) and f.index = %(index)s order by f.n;

-- name: prune_call_failures
delete from call_failures where set_n = any(%(sets)s);
