-- Arguments of calls as they were submitted: a JSON array of JSON texts, of neighbouring calls.

create table call_pages (
  set_n bigint not null,
  first integer not null check (first >= 0),
  last  integer not null,
  args  text not null,
  primary key (set_n, first),
  check (last > first)
);

-- name: find_call_pages
select first, last from call_pages
where set_n = (select n from call_sets where id = %(id)s) and first < %(last)s and first >= coalesce(
  (select max(first) from call_pages where set_n = (select n from call_sets where id = %(id)s) and first <= %(first)s), 0)
order by first;

-- name: insert_call_pages
insert into call_pages (set_n, first, last, args)
select %(n)s, g.first, g.last, g.args from json_to_recordset(%(pages)s::json) as g(first integer, last integer, args text);

-- name: find_orphan_values
-- Which of these names are in no argument or result that is on record. Reads all of them, once for all names.
select n.sha256 from unnest(%(names)s::text[]) as n(sha256) where n.sha256 not in (
  select m[1]
  from (
    select args as text from call_pages union all select results from call_results
    union all select spec from workflow_nodes union all select result from workflow_nodes
  ) t cross join lateral regexp_matches(t.text, '\m([0-9a-f]{64})\M', 'g') m
  where (t.text like '%%$blob%%' or t.text like '%%sha256%%') and m[1] = any(%(names)s::text[]));

-- name: prune_call_pages
delete from call_pages where set_n = any(%(sets)s);
