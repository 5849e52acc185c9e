-- Calls of Python functions. Locks are taken in one order: batches, then sets by number. Ready ranges are skipped where
-- they are locked, except by a cancel, which waits for them before it locks anything else.

-- name: plan_by_index
-- For the rest of the transaction: rows are found by key and in the order of an index, whatever the tables' sizes. A plan
-- that was made while a table was empty would read all of it, or sort it, when it is full: 26 of the 30 statements that
-- tests/store/test_plans.py looks at do without these settings.
-- Where a key is looked up for each row of a set, it is in a lateral look-up with a limit, which no plan turns round; of
-- rows that this transaction has locked the look-up gives the place (ctid), which the change is then made at.
select set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true);

-- name: find_call_feed
select id, family, vram_gb, cold_wait_seconds from call_feeds where family_name = %(family_name)s and model = %(model)s;

-- name: put_call_feed
insert into call_feeds (family_name, model, family, vram_gb, cold_wait_seconds)
values (%(family_name)s, %(model)s, %(family)s, %(vram_gb)s, %(cold_wait_seconds)s)
on conflict (family_name, model) do update
set vram_gb = excluded.vram_gb, cold_wait_seconds = excluded.cold_wait_seconds
returning id;

-- name: insert_call_set
-- Its count, where it is known, is written with the first calls.
insert into call_sets (id, owner, feed, queue, project, function, priority, spec, run, node, out_dir, singles, created_at, heard_at)
values (%(id)s, %(owner)s, %(feed)s, %(queue)s, %(project)s, %(function)s, %(priority)s, %(spec)s, %(run)s, %(node)s, %(out_dir)s,
        %(singles)s, %(now)s, %(now)s)
on conflict (id) do nothing;

-- name: lock_call_set
select *, spec = coalesce(%(spec)s::jsonb, spec) as same, nextval('call_order') as ord from call_sets where id = %(id)s
for no key update;

-- name: read_call_set
select * from call_sets where id = %(id)s;

-- name: show_call_set
select s.*, s.ended_at is null and exists (select from call_batches b where s.n = any(b.sets)) as running
from call_sets s where s.id = %(id)s;

-- name: list_call_sets
-- Open batches are read once and not for each set.
select s.*, s.ended_at is null and s.n = any(array(select distinct unnest(sets) from call_batches)) as running from call_sets s
where (%(before)s::text is null or id < %(before)s) and (%(project)s::text is null or project = %(project)s)
  and (%(owner)s::text is null or owner = %(owner)s)
order by id desc limit %(limit)s;

-- name: find_call_pages
select first, last from call_pages
where set_n = (select n from call_sets where id = %(id)s) and first < %(last)s and first >= coalesce(
  (select max(first) from call_pages where set_n = (select n from call_sets where id = %(id)s) and first <= %(first)s), 0)
order by first;

-- name: insert_call_pages
insert into call_pages (set_n, first, last, args)
select %(n)s, g.first, g.last, g.args from json_to_recordset(%(pages)s::json) as g(first integer, last integer, args text);

-- name: insert_call_ready
insert into call_ready (feed, rank, ord, set_n, last, first, page, attempts, since)
select g.feed, g.rank, g.ord, g.set_n, g.last, g.first, g.page, g.attempts, to_timestamp(g.since)
from json_to_recordset(%(rows)s::json) as g(feed bigint, rank smallint, ord bigint, set_n bigint, last integer, first integer,
  page integer, attempts smallint, since double precision);

-- name: grow_call_set
-- A set whose calls had all ended before its count was known ends here. When its client was heard of is noted every ten
-- seconds, because an index holds it.
with grown as (
  update call_sets set submitted = submitted + %(more)s, count = coalesce(count, %(count)s),
    cut = case when count is null then %(cut)s else cut end,
    heard_at = case when heard_at < %(now)s::timestamptz - interval '10 seconds' then %(now)s else heard_at end,
    ended_at = case when coalesce(count, %(count)s) = succeeded + failed + cancelled then %(now)s::timestamptz end
  where n = %(n)s returning *
), told as (
  insert into workflow_outbox (run, node, kind, ref)
  select run, node, 'call_set', id from grown where ended_at is not null and run is not null
)
select * from grown;

-- name: open_absent_call_set
update call_sets set count = null, cut = '', absent = false, ended_at = null, heard_at = %(now)s where n = %(n)s;

-- name: close_absent_call_sets
-- Sets whose client has been silent for `seconds` and had not said how many calls there are.
with silent as (
  select n from call_sets
  where count is null and run is null and ended_at is null
    and heard_at < coalesce(%(now)s::timestamptz, clock_timestamp()) - make_interval(secs => %(seconds)s)
  order by heard_at limit %(limit)s for no key update skip locked
)
update call_sets s set count = submitted, absent = true, cut = case when singles then '' else %(cut)s end,
  ended_at = case when submitted = succeeded + failed + cancelled then coalesce(%(now)s::timestamptz, clock_timestamp()) end
where n = any(array(select n from silent)) returning s.id;

-- name: look_at_calls
-- What an exchange begins with: the time, the leases of its executors, their batches and the first ranges of each feed of
-- their families, both locked. One row of JSON, because a statement costs its driver more than its rows.
with held as (
  select * from call_batches where job_id = any(%(jobs)s) order by id for update
), heads as (
  select f.id as feed, r.set_n, r.first, r.last, r.page, r.rank, r.ord, r.attempts,
    extract(epoch from r.since)::double precision as since
  from call_feeds f cross join lateral (
    select * from call_ready where feed = f.id
    order by feed, rank, ord, set_n, last limit %(most)s for update skip locked
  ) r
  where f.family_name = any(%(families)s)
)
select coalesce(%(now)s::timestamptz, clock_timestamp()) as now,
  (select json_agg(json_build_array(g.n - 1, t.state in ('reserved', 'running')))
   from unnest(%(keys)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[], %(hosts)s::text[], %(incarnations)s::text[])
     with ordinality as g(job_id, rank, epoch, host_id, incarnation, n)
   cross join lateral (
     select state from tasks t where t.job_id = g.job_id and t.rank = g.rank and t.epoch = g.epoch
       and t.host_id = g.host_id and t.incarnation = g.incarnation and t.state in ('reserved', 'running', 'preempting')
     limit 1
   ) t)::text as leases,
  (select json_agg(h) from held h)::text as batches,
  (select json_agg(json_build_array(h.feed, json_build_array(
     h.set_n, h.first, h.last, h.page, h.rank, h.ord, h.attempts, h.since))) from heads h)::text as heads,
  (select json_agg(json_build_object('id', f.id, 'family_name', f.family_name, 'model', nullif(f.model, ''),
     'vram_gb', f.vram_gb, 'own_wait_seconds', f.cold_wait_seconds, 'queue', f.family->>'queue', 'served_at', f.served_at))
   from call_feeds f where f.family_name = any(%(families)s))::text as feeds;

-- name: delete_call_ready
-- They are locked.
delete from call_ready where ctid = any(array(
  select t.ctid from json_to_recordset(%(rows)s::json) as g(feed bigint, rank smallint, ord bigint, set_n bigint, last integer)
  cross join lateral (
    select ctid from call_ready r
    where r.feed = g.feed and r.rank = g.rank and r.ord = g.ord and r.set_n = g.set_n and r.last = g.last limit 1
  ) t));

-- name: read_call_sets
select n, id, spec::text as spec, queue, cancelled_at, cancel_reason, out_dir from call_sets where n = any(%(sets)s);

-- name: lock_call_sets
select n, id, spec::text as spec, queue, cancelled_at, cancel_reason, out_dir from call_sets where n = any(%(sets)s)
order by n for no key update;

-- name: read_call_charges
select c.set_n, c.index, c.charges
from unnest(%(sets)s::bigint[], %(indices)s::integer[]) as g(set_n, index)
cross join lateral (select * from call_charges c where c.set_n = g.set_n and c.index = g.index limit 1) c;

-- name: write_call_ends
with written as (
  insert into call_results (set_n, first, last, state, attempts, results, reason, ended_at)
  select g.set_n, g.first, g.last, g.state, g.attempts, g.results, g.reason, %(now)s
  from json_to_recordset(%(runs)s::json) as g(
    set_n bigint, first integer, last integer, state smallint, attempts smallint, results text, reason text)
), changed as (
  update call_batches b set ended = g.ended, busy = g.busy
  from (
    select x.ended, x.busy, t.at from json_to_recordset(%(changed)s::json) as x(id bigint, ended jsonb, busy text)
    cross join lateral (select ctid as at from call_batches where id = x.id limit 1) t
  ) g
  where b.ctid = g.at
)
delete from call_batches where id = any(%(gone)s);

-- name: count_call_ends
-- An index that is asked for several keys is read in their order, so the sets' rows are locked in it. counts: by set,
-- succeeded, failed, cancelled and their sum. The outbox row is there if and only if the set is over.
with given as materialized (
  select %(counts)s::jsonb as counts
), counted as (
  update call_sets s set
    succeeded = s.succeeded + (g.counts->s.n::text->>0)::integer, failed = s.failed + (g.counts->s.n::text->>1)::integer,
    cancelled = s.cancelled + (g.counts->s.n::text->>2)::integer,
    ended_at = case when s.count = s.succeeded + s.failed + s.cancelled + (g.counts->s.n::text->>3)::integer
               then %(now)s::timestamptz end
  from given g where s.n = any(%(sets)s)
  returning s.n, s.id, s.run, s.node, s.ended_at
), told as (
  insert into workflow_outbox (run, node, kind, ref)
  select run, node, 'call_set', id from counted where ended_at is not null and run is not null
)
select id from counted;

-- name: exchange_calls
-- All that an exchange writes, and the arguments it answers with, in one statement: ends as in write_call_ends and
-- count_call_ends; of the ranges that look_at_calls locked, whole ones go and the last one is cut. A feed is noted as
-- served about once a second, because every claim would wait for its row otherwise.
with written as (
  insert into call_results (set_n, first, last, state, attempts, results, reason, ended_at)
  select g.set_n, g.first, g.last, g.state, g.attempts, g.results, g.reason, %(now)s
  from json_to_recordset(%(runs)s::json) as g(
    set_n bigint, first integer, last integer, state smallint, attempts smallint, results text, reason text)
), changed as (
  update call_batches b set ended = g.ended, busy = g.busy
  from (
    select x.ended, x.busy, t.at from json_to_recordset(%(changed)s::json) as x(id bigint, ended jsonb, busy text)
    cross join lateral (select ctid as at from call_batches where id = x.id limit 1) t
  ) g
  where b.ctid = g.at
), over as (
  delete from call_batches where id = any(%(gone)s)
), taken as (
  delete from call_ready where ctid = any(array(
    select t.ctid from json_to_recordset(%(taken)s::json) as g(feed bigint, rank smallint, ord bigint, set_n bigint, last integer)
    cross join lateral (
      select ctid from call_ready r
      where r.feed = g.feed and r.rank = g.rank and r.ord = g.ord and r.set_n = g.set_n and r.last = g.last limit 1
    ) t))
), cut as (
  update call_ready c set first = g.first
  from (
    select x.first, t.at from json_to_recordset(%(cut)s::json) as x(
      feed bigint, rank smallint, ord bigint, set_n bigint, last integer, first integer)
    cross join lateral (
      select ctid as at from call_ready r
      where r.feed = x.feed and r.rank = x.rank and r.ord = x.ord and r.set_n = x.set_n and r.last = x.last limit 1
    ) t
  ) g
  where c.ctid = g.at
), stale as (
  select id from call_feeds where id = any(%(served)s)
    and (served_at is null or served_at < %(now)s::timestamptz - interval '1 second')
  order by id for no key update skip locked
), noted as (
  update call_feeds set served_at = %(now)s where id = any(array(select id from stale))
), made as (
  insert into call_batches (job_id, task_rank, epoch, host_id, feed, sets, pieces, began_at)
  select x.job_id, x.task_rank, x.epoch, x.host_id, x.feed, x.sets, x.pieces, %(now)s
  from json_to_recordset(%(batches)s::json) as x(
    job_id text, task_rank integer, epoch bigint, host_id text, feed bigint, sets bigint[], pieces jsonb)
  returning id, job_id
), given as materialized (
  select %(counts)s::jsonb as counts
), counted as (
  update call_sets s set
    succeeded = s.succeeded + (g.counts->s.n::text->>0)::integer, failed = s.failed + (g.counts->s.n::text->>1)::integer,
    cancelled = s.cancelled + (g.counts->s.n::text->>2)::integer,
    ended_at = case when s.count = s.succeeded + s.failed + s.cancelled + (g.counts->s.n::text->>3)::integer
               then %(now)s::timestamptz end
  from given g where s.n = any(%(sets)s)
  returning s.n, s.id, s.run, s.node, s.ended_at
), told as (
  insert into workflow_outbox (run, node, kind, ref)
  select run, node, 'call_set', id from counted where ended_at is not null and run is not null
)
select d.batches, d.touched, p.set_n, p.first, p.args
from (select (select json_agg(json_build_array(m.job_id, m.id) order by m.id) from made m)::text as batches,
             (select json_agg(c.id) from counted c)::text as touched) d
left join (
  select c.* from json_to_recordset(%(pages)s::json) as g(set_n bigint, first integer)
  cross join lateral (select * from call_pages p where p.set_n = g.set_n and p.first = g.first limit 1) c
) p on true;

-- name: insert_call_waiting
insert into call_waiting (set_n, index, due_at, feed, rank, ord, page, attempts, held)
select * from unnest(%(sets)s::bigint[], %(indices)s::integer[], %(dues)s::timestamptz[], %(feeds)s::bigint[],
  %(ranks)s::smallint[], %(ords)s::bigint[], %(pages)s::integer[], %(attempts)s::smallint[], %(held)s::boolean[]);

-- name: insert_call_failures
insert into call_failures (set_n, index, attempt, host_id, job_id, cause, rule, charged_to, reason, detail, began_at, ended_at)
select x.set_n, x.index, x.attempt, x.host_id, x.job_id, x.cause, x.rule, x.charged_to, x.reason, x.detail, x.began_at, x.ended_at
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  set_n bigint, index integer, attempt smallint, host_id text, job_id text, cause text, rule text, charged_to text,
  reason text, detail text, began_at timestamptz, ended_at timestamptz);

-- name: put_call_charges
insert into call_charges (set_n, index, charges)
select g.set_n, g.index, g.charges::jsonb
from unnest(%(sets)s::bigint[], %(indices)s::integer[], %(charges)s::text[]) as g(set_n, index, charges)
on conflict (set_n, index) do update set charges = excluded.charges;

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

-- name: list_call_failures
select f.attempt, f.host_id, (select h.name from hosts h where h.id = f.host_id) as host, f.job_id, f.cause, f.rule, f.charged_to, f.reason, f.detail, f.began_at, f.ended_at
from call_failures f
where f.set_n = (select n from call_sets where id = %(id)s) and f.index = %(index)s order by f.n;

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

-- name: read_call_feeds
select f.id, f.family, nullif(f.model, '') as model, f.vram_gb, h.ready::integer as ready,
  100 - h.rank as head_priority,
  greatest(0, extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp()) - h.since))::double precision as head_age_seconds,
  greatest(0, coalesce(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp()) - f.served_at), 1e9))::double precision as unserved_seconds,
  f.cold_wait_seconds, f.family->>'queue' as queue
from call_feeds f
cross join lateral (
  select sum(r.last - r.first) as ready, (array_agg(r.rank))[1] as rank, (array_agg(r.since))[1] as since
  from (
    select last, first, rank, since from call_ready where feed = f.id
    order by feed, rank, ord, set_n, last limit %(most)s
  ) r
) h
where h.ready is not null
order by f.id;

-- name: read_running_calls
-- An executor counts once, with the batch that it was handed first.
select f.family, nullif(f.model, '') as model, count(*)::integer as calls
from (select distinct on (job_id) job_id, feed from call_batches order by job_id, id) b
cross join lateral (select * from call_feeds where id = b.feed limit 1) f
group by f.id, f.family, f.model order by f.id;

-- name: read_busy_calls
-- names: of the sets that its calls are of.
select b.*, f.family, (select json_object_agg(s.n::text, s.id) from call_sets s where s.n = any(b.sets)) as names
from (select * from call_batches where busy <> '' order by id limit 10000) b
cross join lateral (select family from call_feeds where id = b.feed limit 1) f
order by b.id;

-- name: find_left_batches
-- Batches whose executor's task is over, marked when they are first found, because its closing report may still be under way.
with over as materialized (
  select b.* from call_batches b
  left join lateral (
    select true as live from tasks t where t.job_id = b.job_id and t.rank = b.task_rank and t.epoch = b.epoch
      and t.state in ('reserved', 'running', 'preempting') limit 1
  ) t on true
  where t.live is null
  order by b.id for update of b skip locked
), marked as (
  update call_batches set left_at = %(now)s where id = any(array(select id from over where left_at is null))
)
select * from over where left_at <= %(now)s::timestamptz - %(patience)s * interval '1 second' order by id;

-- name: lock_due_calls
select set_n, index as first, index + 1 as last, page, rank, ord, attempts, 0::double precision as since, feed, held
from call_waiting where due_at <= %(now)s order by due_at limit %(limit)s for update skip locked;

-- name: find_due_call
select min(due_at) as due_at from call_waiting;

-- name: delete_call_waiting
-- They are locked.
delete from call_waiting where ctid = any(array(
  select t.ctid from unnest(%(sets)s::bigint[], %(indices)s::integer[]) as g(set_n, index)
  cross join lateral (select ctid from call_waiting w where w.set_n = g.set_n and w.index = g.index limit 1) t));

-- name: defer_held_calls
update call_waiting set due_at = %(until)s where ctid = any(array(
  select t.ctid from unnest(%(sets)s::bigint[], %(indices)s::integer[]) as g(set_n, index)
  cross join lateral (select ctid from call_waiting w where w.set_n = g.set_n and w.index = g.index limit 1) t));

-- name: lock_ready_of_set
-- A cancel's first look, which waits for claims that are under way.
select feed, set_n, first, last, page, rank, ord, attempts, extract(epoch from since)::double precision as since
from call_ready where feed = %(feed)s and rank = %(rank)s and set_n = %(n)s for update;

-- name: lock_free_ready_of_set
-- Its second, with the set locked: what was made ready meanwhile. A claim may hold one and wait for the set.
select feed, set_n, first, last, page, rank, ord, attempts, extract(epoch from since)::double precision as since
from call_ready where feed = %(feed)s and rank = %(rank)s and set_n = %(n)s for update skip locked;

-- name: lock_waiting_of_set
select set_n, index as first, index + 1 as last, page, rank, ord, attempts, 0::double precision as since
from call_waiting where set_n = %(n)s for update;

-- name: lock_free_waiting_of_set
select set_n, index as first, index + 1 as last, page, rank, ord, attempts, 0::double precision as since
from call_waiting where set_n = %(n)s for update skip locked;

-- name: lock_batches_of_set
select * from call_batches where %(n)s = any(sets) order by id for update;

-- name: stop_call_batches
update call_batches b set cancelled = g.cancelled, killed = g.killed
from json_to_recordset(%(rows)s::json) as g(id bigint, cancelled jsonb, killed jsonb) where b.id = g.id;

-- name: close_call_set
update call_sets set count = coalesce(count, submitted), cancelled_at = %(now)s, cancel_reason = %(reason)s where n = %(n)s;

-- name: reopen_call_set
update call_sets set cancelled_at = null, cancel_reason = '' where n = %(n)s;

-- name: take_call_results
-- Failed and cancelled runs; what was not asked for of them is written again.
delete from call_results r
where r.set_n = %(n)s and r.state in (2, 3)
  and (%(firsts)s::integer[] is null
       or exists (select from unnest(%(firsts)s::integer[], %(lasts)s::integer[]) as g(first, last)
                  where g.first < r.last and r.first < g.last))
returning r.first, r.last, r.state, r.attempts, r.results, r.reason, r.ended_at, (
  select max(p.first) from call_pages p where p.set_n = r.set_n and p.first <= r.first) as page;

-- name: delete_call_charges
-- Their set is locked.
delete from call_charges where ctid = any(array(
  select t.ctid from unnest(%(firsts)s::integer[], %(lasts)s::integer[]) as g(first, last)
  cross join lateral (
    select ctid from call_charges c where c.set_n = %(n)s and c.index >= g.first and c.index < g.last offset 0
  ) t));

-- name: find_old_sets
-- A run's sets go after it (HISTORY-1): a restart uses their results again.
select n from call_sets s
where ended_at < %(before)s::timestamptz
  and not coalesce((
    select r.ended_at is null or r.ended_at >= %(before)s::timestamptz from workflow_runs r where r.id = s.run limit 1), false)
order by ended_at limit %(limit)s for update skip locked;

-- name: find_known_values
-- Which of these names are in an argument or a result that is on record. Reads all of them, once for all names.
select distinct m[1] as sha256
from (
  select args as text from call_pages union all select results from call_results
  union all select spec from workflow_nodes union all select result from workflow_nodes
) t cross join lateral regexp_matches(t.text, '\m([0-9a-f]{64})\M', 'g') m
where (t.text like '%%$blob%%' or t.text like '%%sha256%%') and m[1] = any(%(names)s::text[]);

-- name: prune_call_pages
delete from call_pages where set_n = any(%(sets)s);

-- name: prune_call_results
delete from call_results where set_n = any(%(sets)s);

-- name: prune_call_charges
delete from call_charges where set_n = any(%(sets)s);

-- name: prune_call_failures
delete from call_failures where set_n = any(%(sets)s);

-- name: prune_call_sets
delete from call_sets where n = any(%(sets)s);

-- name: read_waiting_call
select due_at, attempts from call_waiting where set_n = %(n)s and index = %(index)s;

-- name: read_ready_call
select feed, set_n, first, last, page, rank, ord, attempts, extract(epoch from since)::double precision as since
from call_ready where feed = %(feed)s and rank = %(rank)s and set_n = %(n)s and first <= %(index)s and last > %(index)s;

-- name: count_calls_ahead
-- Counted to a bound of ranges.
select sum(r.last - r.first)::integer from (
  select last, first from call_ready
  where feed = %(feed)s and (rank, ord, set_n, last) < (%(rank)s, %(ord)s, %(set_n)s, %(last)s)
  order by feed, rank, ord, set_n, last limit 10000
) r;

-- name: read_batches_of_set
select * from call_batches where %(n)s = any(sets) order by id;

-- name: read_call_family
select family from call_feeds where id = %(id)s;

-- name: count_host_calls
insert into host_calls (host_id, done, failed, seconds) values (%(host)s, %(done)s, %(failed)s, %(seconds)s)
on conflict (host_id) do update set done = host_calls.done + excluded.done, failed = host_calls.failed + excluded.failed,
  seconds = host_calls.seconds + excluded.seconds;
