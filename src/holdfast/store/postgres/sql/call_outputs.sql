-- Where in the logs of executors the outputs of calls begin: a row for the neighbours of one set in one append.

create table call_outputs (
  job_id       text not null,
  attempt      integer not null,
  rank         integer not null,
  stream       text not null,
  start        bigint not null,
  "end"        bigint not null,
  set_id       text not null,
  call_attempt integer not null,
  first        integer not null,
  last         integer not null,
  primary key (job_id, attempt, rank, stream, start, set_id, call_attempt),
  constraint call_outputs_span check (first < last and start < "end")
);
create index call_outputs_of_set on call_outputs (set_id, last);

-- name: insert_call_outputs
-- Where outputs of calls begin; an append that is repeated writes the same again.
insert into call_outputs (job_id, attempt, rank, stream, start, "end", set_id, call_attempt, first, last)
select %(job_id)s, %(attempt)s, %(rank)s, %(stream)s, x.start, x."end", x.set_id, x.attempt, x.first, x.last
from jsonb_to_recordset(%(spans)s::jsonb)
  as x(start bigint, "end" bigint, set_id text, attempt integer, first integer, last integer)
on conflict do nothing;

-- name: drop_call_outputs
-- With the chunks between head and tail.
delete from call_outputs
where job_id = %(job_id)s and attempt = %(attempt)s and rank = %(rank)s and stream = %(stream)s
  and start >= %(head)s and start < %(tail_start)s and "end" <= %(tail_start)s;

-- name: find_call_outputs
-- Only in logs of executors that may run calls of this set: a job could print the mark of any call.
with given as materialized (
  select s.id, (select family_name from call_feeds where id = s.feed) as family_name from call_sets s where s.id = %(id)s
)
select o.job_id, o.attempt as job_attempt, o.stream, o.start, o."end"
from given g cross join lateral (
  select * from call_outputs
  where set_id = g.id and last > %(index)s and first <= %(index)s and call_attempt = %(attempt)s
  offset 0
) o cross join lateral (
  select from jobs where id = o.job_id and spec->>'executor' = g.family_name offset 0
) j
order by o.job_id, o.attempt, o.stream desc, o.start limit 1000;

-- name: find_last_marks
-- For each of some places in logs of executors, where the last mark before it is to be looked for: in the rows that begin
-- last before it. A row ends where its last mark does.
select o.n, max(case when o."end" <= o.at then o."end" - %(longest)s else greatest(o.start, o.at - %(most)s) end) as start,
  max(least(o."end", o.at)) as "end"
from (
  select g.n, g.at, c.start, c."end"
  from unnest(%(jobs)s::text[], %(attempts)s::integer[], %(ranks)s::integer[], %(streams)s::text[], %(starts)s::bigint[])
    with ordinality as g(job_id, attempt, rank, stream, at, n)
  cross join lateral (
    select start, "end" from call_outputs
    where job_id = g.job_id and attempt = g.attempt and rank = g.rank and stream = g.stream and start < g.at
    order by start desc limit 4
  ) c
  where exists (select from jobs j where j.id = g.job_id and j.spec ? 'executor')
) o
group by o.n;

-- name: prune_outputs
delete from call_outputs where job_id = any(%(ids)s);
