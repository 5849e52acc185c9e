-- Ended calls: neighbours that ended alike, in one report.

create table call_results (
  set_n    bigint not null,
  first    integer not null,
  last     integer not null,
  state    smallint not null check (state in (1, 2, 3)), -- `CallState`
  attempts smallint not null,
  results  text, -- a JSON array of JSON texts; null without any
  reason   text not null default '',
  ended_at timestamptz not null,
  primary key (set_n, first),
  check (last > first)
);

-- name: write_call_ends
with written as (
  insert into call_results (set_n, first, last, state, attempts, results, reason, ended_at)
  select g.set_n, g.first, g.last, g.state, g.attempts, g.results, g.reason, %(now)s
  from json_to_recordset(%(runs)s::json) as g(
    set_n bigint, first integer, last integer, state smallint, attempts smallint, results text, reason text)
), changed as (
  update call_batches b set ended = g.ended, busy = g.busy
  from json_to_recordset(%(changed)s::json) as g(id bigint, ended jsonb, busy text)
  where b.id = any(array(select id from json_to_recordset(%(changed)s::json) as x(id bigint))) and b.id = g.id
)
delete from call_batches where id = any(%(gone)s);

-- name: read_call_results
-- Runs that touch [first, last).
with given as materialized (select n from call_sets where id = %(id)s)
select r.first, r.last, r.state, r.attempts, r.results, r.reason
from given g cross join lateral (
  select * from call_results where set_n = g.n and first < %(last)s and first >= coalesce(
    (select max(first) from call_results where set_n = g.n and first <= %(first)s), 0)
  offset 0
) r
order by r.first;

-- name: find_call_results
with given as materialized (select n from call_sets where id = %(id)s)
select distinct on (r.first) r.first, r.last, r.state, r.attempts, r.results, r.reason, r.ended_at
from given s cross join unnest(%(indices)s::integer[]) as g(index)
cross join lateral (
  select * from call_results where set_n = s.n and first <= g.index order by first desc limit 1
) r
where r.last > g.index
order by r.first;

-- name: list_call_results
with given as materialized (select n from call_sets where id = %(id)s)
select r.first, r.last, r.state, r.attempts, r.results, r.reason
from given g join call_results r on r.set_n = g.n
where r.state = any(%(states)s) and r.last > %(first)s
order by r.first limit %(limit)s;

-- name: take_call_results
-- Failed and cancelled runs; what was not asked for of them is written again.
delete from call_results r
where r.set_n = %(n)s and r.state in (2, 3)
  and (%(firsts)s::integer[] is null
       or exists (select from unnest(%(firsts)s::integer[], %(lasts)s::integer[]) as g(first, last)
                  where g.first < r.last and r.first < g.last))
returning r.first, r.last, r.state, r.attempts, r.results, r.reason, r.ended_at, (
  select max(p.first) from call_pages p where p.set_n = r.set_n and p.first <= r.first) as page;

-- name: prune_call_results
delete from call_results where set_n = any(%(sets)s);
