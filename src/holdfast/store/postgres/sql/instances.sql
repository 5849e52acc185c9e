-- Instances: the rental of one machine each. Its intent is its host's id, on record before the provider is asked.

create table instances (
  host_id       text primary key,
  pool          text not null,
  offer         text not null,
  usd_per_hour  double precision not null check (usd_per_hour >= 0),
  gpus          integer not null default 0, -- of the whole machine, as its offer says, with cpu_slots
  cpu_slots     integer not null default 0,
  state         text not null constraint instances_state_check check (state in ('intended', 'asked', 'made', 'ending', 'gone')),
  ref           text, -- the provider's name of the machine
  reason        text not null default '',
  fault         text not null default '',
  said          text not null default '', -- what the provider says of a machine that starts
  -- Why the provider takes it away, in Holdfast's word (`Machine.lost`), kept because the machine is often gone from the next
  -- listing, and its work is charged by it.
  lost          text not null default '',
  intended_at   timestamptz not null,
  asked_at      timestamptz,
  made_at       timestamptz,
  active_at     timestamptz, -- its host passed its checks for the first time
  end_asked_at  timestamptz,
  gone_at       timestamptz,
  seen_at       timestamptz, -- in the provider's listing
  missing_since timestamptz,
  missing_times integer not null default 0 check (missing_times >= 0),
  constraint instances_gone_at check ((state = 'gone') = (gone_at is not null)),
  constraint instances_asked_at check (state in ('intended', 'gone') or asked_at is not null),
  constraint instances_made_ref check (state <> 'made' or ref is not null)
);
create index instances_open on instances (pool) where state <> 'gone';
create index instances_gone on instances (gone_at) where state = 'gone';

-- name: find_preempted
select host_id, said from instances where lost = 'preempted';

-- name: pool_in_use
select exists (
  select from instances i join hosts h on h.id = i.host_id
  where i.pool = %(name)s and (i.state <> 'gone' or h.state <> 'terminated'));

-- name: read_money
-- From the question on, of machines that were made: one that no provider ever named or listed costs nothing. Must equal
-- `moves.fleet.cost_since`.
with clock as materialized (
  select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
), day as materialized (
  select now, date_trunc('day', now, 'UTC') as midnight from clock
)
select i.pool,
       coalesce(sum(i.usd_per_hour) filter (where i.gone_at is null), 0)::double precision as usd_per_hour,
       sum(greatest(0, extract(epoch from least(coalesce(i.gone_at, d.now), d.now) - greatest(i.asked_at, d.midnight)))
           * i.usd_per_hour / 3600)::double precision as spent_today_usd
from instances i cross join day d
where i.asked_at is not null and i.made_at is not null and (i.gone_at is null or i.gone_at > d.midnight)
group by i.pool;

-- name: count_open
-- Under the pool's lock, so that of two cycles that saw the same pool one spawns.
select count(*) from instances where pool = %(pool)s and state <> 'gone';

-- name: insert_intents
-- The heartbeat's row is the host's lock from its first moment; its incarnation is empty until the agent calls.
with given as (
  select * from unnest(%(ids)s::text[], %(names)s::text[]) as g(id, name)
), hosted as (
  insert into hosts (id, name, pool, state, reason, queues, labels, cpu_slots, memory_bytes, registered_at, state_at)
  select g.id, g.name, %(pool)s, 'spawning', %(reason)s, %(queues)s, %(labels)s::jsonb, 0, 0, %(now)s, %(now)s from given g
), beating as (
  insert into heartbeats (host_id, incarnation, heartbeat_at) select g.id, '', %(now)s from given g
)
insert into instances (host_id, pool, offer, usd_per_hour, gpus, cpu_slots, state, reason, intended_at)
select g.id, %(pool)s, %(offer)s, %(usd_per_hour)s, %(gpus)s, %(cpu_slots)s, 'intended', %(reason)s, %(now)s from given g
returning host_id;

-- name: lock_instance
-- After the host's own lock.
select i.host_id, h.name, i.pool, i.offer, i.state, h.state as host, i.ref, i.fault, i.active_at is not null as served,
       i.intended_at
from instances i join hosts h on h.id = i.host_id
where i.host_id = %(id)s
for update of i;

-- name: ask_instance
update instances set state = %(state)s, asked_at = %(now)s where host_id = %(id)s;

-- name: make_instance
update instances set state = %(state)s, ref = %(ref)s, made_at = coalesce(made_at, %(now)s), seen_at = %(now)s,
       usd_per_hour = coalesce(%(usd_per_hour)s, usd_per_hour), missing_since = null, missing_times = 0
where host_id = %(id)s;

-- name: end_instance
-- The machine is not wanted any more, or is gone.
update instances set
  state = %(state)s, reason = %(reason)s, gone_at = case when %(state)s = 'gone' then %(now)s::timestamptz end
where host_id = %(id)s;

-- name: note_end_asked
update instances set end_asked_at = %(now)s where host_id = %(id)s;

-- name: note_seen
-- Most listings show what the one before did, and write nothing.
update instances set seen_at = %(now)s, missing_since = null, missing_times = 0
where host_id = any(%(ids)s) and state <> 'gone' and (
  state <> 'made' or missing_since is not null or seen_at is null
  or seen_at <= %(now)s::timestamptz - %(seconds)s * interval '1 second');

-- name: note_missing
update instances set missing_since = coalesce(missing_since, %(now)s), missing_times = missing_times + 1
where host_id = any(%(ids)s) and state <> 'gone';

-- name: note_words
update instances i set said = g.said from unnest(%(ids)s::text[], %(said)s::text[]) as g(id, said)
where i.host_id = g.id and i.state <> 'gone' and i.said <> g.said;

-- name: note_lost
update instances i set lost = g.lost from unnest(%(ids)s::text[], %(lost)s::text[]) as g(id, lost)
where i.host_id = g.id and i.state <> 'gone' and i.lost <> g.lost;

-- name: find_silent
select i.host_id, i.pool from instances i join heartbeats b on b.host_id = i.host_id
where i.state = 'made' and b.incarnation <> ''
  and b.heartbeat_at < coalesce(%(now)s::timestamptz, clock_timestamp()) - %(seconds)s * interval '1 second'
  and exists (select from tasks t where t.host_id = i.host_id and t.state in ('reserved', 'running', 'preempting'))
order by i.host_id;

-- name: note_active
update instances set active_at = coalesce(active_at, %(now)s) where host_id = %(id)s;

-- name: note_fault
update instances set fault = %(fault)s where host_id = %(id)s;

-- name: read_instances
select i.host_id, h.name, i.pool, i.offer, i.usd_per_hour, i.state, h.state as host_state, i.ref, i.reason, i.fault, i.said,
       i.intended_at, i.asked_at, i.made_at, i.end_asked_at, i.gone_at, i.seen_at, i.missing_since, i.missing_times,
       case when b.incarnation <> '' then b.heartbeat_at end as heartbeat_at
from instances i join hosts h on h.id = i.host_id join heartbeats b on b.host_id = i.host_id
where (%(ids)s::text[] is null or i.host_id = any(%(ids)s)) and (%(pool)s::text is null or i.pool = %(pool)s)
  and (%(states)s::text[] is null or i.state = any(%(states)s))
  and (%(include_gone)s or i.state <> 'gone' or h.state <> 'terminated')
order by i.intended_at, i.host_id;

-- name: seen_memory
-- What the last host of each offer showed: an offer may not say its memory.
select distinct on (i.pool, i.offer) i.pool, i.offer, h.memory_bytes
from instances i join hosts h on h.id = i.host_id where h.memory_bytes > 0
order by i.pool, i.offer, i.intended_at desc;

-- name: prune_instances
with old as (
  select i.host_id from instances i join hosts h on h.id = i.host_id
  where i.state = 'gone' and i.gone_at < %(before)s and h.state = 'terminated'
    and not exists (select from tasks t where t.host_id = i.host_id)
  order by i.gone_at limit %(limit)s
), beats as (
  delete from heartbeats b using old where b.host_id = old.host_id
), counted as (
  delete from host_calls c using old where c.host_id = old.host_id
), tokened as (
  delete from tokens t using old where t.host_id = old.host_id
), hosted as (
  delete from hosts h using old where h.id = old.host_id
)
delete from instances i using old where i.host_id = old.host_id;

-- name: read_rentals
-- The open machines of pools, alike ones together, and how old those are that do not serve yet.
select i.pool, i.offer, i.usd_per_hour, i.state as instance, h.state, count(*) as hosts,
       case when h.state in ('spawning', 'preflight') then
         array_agg(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp()) - i.intended_at)::double precision)
       else '{}' end as ages
from instances i join hosts h on h.id = i.host_id
where i.state <> 'gone'
group by i.pool, i.offer, i.usd_per_hour, i.state, h.state;

-- name: read_spawn_times
-- How long machines took from their intent until they served: of the open ones, and of those that went last.
select i.pool, extract(epoch from i.active_at - i.intended_at)::double precision as seconds
from (
  (select pool, intended_at, active_at from instances where state <> 'gone' and active_at is not null limit 200)
  union all
  (select pool, intended_at, active_at from instances where state = 'gone' and active_at is not null order by gone_at desc limit 200)
) i;
