-- Heartbeats of hosts, written at every sync, so narrow and in place (HOT). Its row is also the host's lock: a transaction that
-- changes a host's state or incarnation, or places work there, locks this row first.

create table heartbeats (
  host_id         text primary key,
  incarnation     text not null,
  heartbeat_at    timestamptz not null,
  flagged_dead_at timestamptz,
  busy_at         timestamptz -- when its agent last held a lease; exact, and it costs the end of a job nothing
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- name: lock_hosts
select host_id from heartbeats where host_id = any(%(ids)s) order by host_id for no key update;

-- name: touch_hosts
{part:touch}
{part:told_of_hosts};

-- name: touch_and_renew
-- As touch_hosts and then renew_tasks, for syncs that say nothing new. The rows of the hosts come first, then those of the
-- renewed tasks. The hosts are locked first, because `clock` and `able` are read as a whole before a task is locked.
{part:touch}
, clock as materialized (
  select max(now) as at from known
), able as (
  select host_id from known where fresh and state <> 'error'
), renewed as (
  {part:renewals}
)
select h.*, null::text as job_id, null::int as rank, null::bigint as epoch, null::float8 as lease_ttl_seconds
from (
{part:told_of_hosts}
) h
union all
select null, null, null, null, null, null, null, null, null, null, null, null, null, null, r.* from renewed r;

-- part: touch
-- The incarnation is compared in the locked row, so an old incarnation cannot get past a registration.
-- `orders`: whether the host has tasks to start or stop that it has not heard of, so that most syncs cost no second
-- statement.
-- `relaxed`: a crash of the server may lose the transaction.
with given as (
  select * from unnest(%(ids)s::text[], %(incarnations)s::text[], %(leaving)s::bool[], %(busy)s::bool[])
    as g(host_id, incarnation, leaving, busy)
), live as materialized (
  select * from unnest(%(jobs)s::text[], %(ranks)s::int[], %(epochs)s::bigint[]) as l(job_id, rank, epoch)
), locked as (
  select b.host_id, b.flagged_dead_at, b.heartbeat_at, b.incarnation = g.incarnation as same, g.leaving, g.busy
  from heartbeats b join given g on g.host_id = b.host_id
  where b.host_id = any(%(ids)s::text[])
  order by b.host_id
  for no key update of b
), known as (
  select l.host_id, l.flagged_dead_at, l.heartbeat_at, h.name, h.state, h.faults, h.reason, l.busy,
         coalesce(%(now)s, clock_timestamp()) as now,
         l.same and h.key_hash is not null and (h.state <> 'terminated' or l.leaving) as fresh
  from locked l join hosts h on h.id = l.host_id and h.id = any(%(ids)s::text[])
), touched as (
  update heartbeats b set heartbeat_at = greatest(b.heartbeat_at, k.now), flagged_dead_at = null,
         busy_at = case when k.busy then k.now else b.busy_at end
  from known k where b.host_id = k.host_id and k.fresh and b.host_id = any(%(ids)s::text[])
)

-- part: told_of_hosts
-- What a sync's transaction needs to know of each host.
select k.*, k.fresh and exists (
         select from tasks t where t.host_id = k.host_id and t.state in ('reserved', 'preempting')
           and (t.state = 'preempting' or t.offered_at is null or t.claimed_at is not null
                or (t.job_id, t.rank, t.epoch) not in (select job_id, rank, epoch from live))) as orders,
       k.fresh and exists (select from log_reads r where r.host_id = k.host_id and r.at is null) as reads,
       k.fresh and exists (select from session_links s where s.host_id = k.host_id
           and (s.told_at is null or s.told_at < clock_timestamp() - interval '2 seconds')) as sessions,
       case when %(relaxed)s then set_config('synchronous_commit', 'off', true) end as lax
from known k;

-- name: lock_host
select b.incarnation from heartbeats b where b.host_id = %(id)s for update;

-- name: put_heartbeat
insert into heartbeats (host_id, incarnation, heartbeat_at) values (%(id)s, %(incarnation)s, %(now)s)
on conflict (host_id) do update set
  incarnation = excluded.incarnation, heartbeat_at = excluded.heartbeat_at, flagged_dead_at = null;

-- name: flag_dead_hosts
-- Once, because the guard reads the flag. Only hosts with live work are reported.
with silent as (
  select b.host_id from heartbeats b
  where b.flagged_dead_at is null and b.heartbeat_at < %(silent_since)s
    and exists (select from tasks t where t.host_id = b.host_id and t.state in ('reserved', 'running', 'preempting'))
  order by b.host_id
  for update of b
)
update heartbeats b set flagged_dead_at = %(now)s
from silent s where b.host_id = s.host_id and b.flagged_dead_at is null
returning b.host_id, b.heartbeat_at;

-- name: settle_heartbeats
-- These four run after the clock was set back (LEASE-5). Each reads the clock when it writes, so a row that was written
-- meanwhile is compared anew.
with ahead as (
  select host_id from heartbeats where heartbeat_at > coalesce(%(now)s::timestamptz, clock_timestamp())
  order by host_id for no key update
)
update heartbeats b set heartbeat_at = least(b.heartbeat_at, coalesce(%(now)s::timestamptz, clock_timestamp()))
from ahead where b.host_id = ahead.host_id;
