-- Open batches only: what an executor holds. Positions count through its pieces.

create table call_batches (
  id         bigint generated always as identity primary key,
  job_id     text not null, -- the executor's, as task_rank, epoch and host_id
  task_rank  integer not null,
  epoch      bigint not null,
  host_id    text not null,
  feed       bigint not null,
  sets       bigint[] not null,
  pieces     jsonb not null, -- [set_n, first, last, page, rank, ord, attempts, since]
  ended      jsonb not null default '[]', -- ranges of positions whose end is on record
  cancelled  jsonb not null default '[]', -- ranges that were asked to stop
  killed     jsonb not null default '[]', -- those of `cancelled` that are ended at once, without their grace
  -- Why the executor takes no calls beside the one of this batch that it runs: 'long', because that runs for long, or the call
  -- that it waits for; '' where it takes more.
  busy       text not null default '',
  began_at   timestamptz not null,
  left_at    timestamptz -- its executor was found gone; it is returned a little later, after a closing report could come
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200);
create index call_batches_of_job on call_batches (job_id);

-- name: read_held_batch
select * from call_batches where id = %(batch)s;

-- name: lock_held_batch
-- As an exchange locks it: a checkpoint and the end of its call take turns.
select * from call_batches where id = %(batch)s for update;

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
  from json_to_recordset(%(changed)s::json) as g(id bigint, ended jsonb, busy text)
  where b.id = any(array(select id from json_to_recordset(%(changed)s::json) as x(id bigint))) and b.id = g.id
), over as (
  delete from call_batches where id = any(%(gone)s)
), taken as (
  delete from call_ready where ctid = any(array(
    select t.ctid from json_to_recordset(%(taken)s::json) as g(feed bigint, rank smallint, ord bigint, set_n bigint, last integer)
    cross join lateral (
      select ctid from call_ready r
      where r.feed = g.feed and r.rank = g.rank and r.ord = g.ord and r.set_n = g.set_n and r.last = g.last limit 1
    ) t))
), places as materialized (
  select x.first, t.at from json_to_recordset(%(cut)s::json) as x(
    feed bigint, rank smallint, ord bigint, set_n bigint, last integer, first integer)
  cross join lateral (
    select ctid as at from call_ready r
    where r.feed = x.feed and r.rank = x.rank and r.ord = x.ord and r.set_n = x.set_n and r.last = x.last limit 1
  ) t
), cut as (
  update call_ready c set first = g.first from places g
  where c.ctid = any(array(select at from places)) and c.ctid = g.at
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
  insert into workflow_outbox (run, node, kind, ref, due_at)
  select run, node, 'call_set', id, ended_at from counted where ended_at is not null and run is not null
)
select d.batches, d.touched, p.set_n, p.first, p.args
from (select (select json_agg(json_build_array(m.job_id, m.id) order by m.id) from made m)::text as batches,
             (select json_agg(c.id) from counted c)::text as touched) d
left join (
  select c.* from json_to_recordset(%(pages)s::json) as g(set_n bigint, first integer)
  cross join lateral (select * from call_pages p where p.set_n = g.set_n and p.first = g.first limit 1) c
) p on true;

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

-- name: lock_batches_of_set
select * from call_batches where %(n)s = any(sets) order by id for update;

-- name: stop_call_batches
update call_batches b set cancelled = g.cancelled, killed = g.killed
from json_to_recordset(%(rows)s::json) as g(id bigint, cancelled jsonb, killed jsonb) where b.id = g.id;

-- name: read_batches_of_set
select * from call_batches where %(n)s = any(sets) order by id;
