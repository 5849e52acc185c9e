-- Feeds: calls that wait for one family of executors and one model. Few rows.
--
-- A call has no row of its own: calls are submitted in pages (`call_pages`), wait as ranges (`call_ready`), run as pieces of a
-- batch (`call_batches`) and end as runs of neighbours (`call_results`), so that what is written grows with messages and not with
-- calls. A call is named by its set's number and its index. Ranges are half open, [first, last).
-- Locks are taken in one order: batches, then sets by number. Ready ranges are skipped where they are locked, except by a cancel,
-- which waits for them before it locks anything else.

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

-- name: find_call_feed
select id, family, vram_gb, cold_wait_seconds from call_feeds where family_name = %(family_name)s and model = %(model)s;

-- name: put_call_feed
insert into call_feeds (family_name, model, family, vram_gb, cold_wait_seconds)
values (%(family_name)s, %(model)s, %(family)s, %(vram_gb)s, %(cold_wait_seconds)s)
on conflict (family_name, model) do update
set vram_gb = excluded.vram_gb, cold_wait_seconds = excluded.cold_wait_seconds
returning id;

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

-- name: read_call_family
select family from call_feeds where id = %(id)s;
