-- Pools of hosts that are rented from providers.

create table pools (
  name          text primary key,
  spec          jsonb not null,
  paused_at     timestamptz,
  paused_reason text not null default '',
  deleted_at    timestamptz, -- it shrinks to nothing; the row goes with its last machine
  blocked       text not null default '', -- why the last cycle held back a host that is wanted
  quiet_until   timestamptz, -- until when a provider asks to be left in peace
  quiet_reason  text not null default '',
  cycled_at     timestamptz,
  created_at    timestamptz not null
);

-- name: lock_pool
select name, spec, paused_at, paused_reason, deleted_at, blocked, cycled_at, quiet_until, quiet_reason, created_at
from pools where name = %(name)s for update;

-- name: read_pools
select name, spec, paused_at, paused_reason, deleted_at, blocked, cycled_at, quiet_until, quiet_reason, created_at
from pools where %(names)s::text[] is null or name = any(%(names)s) order by name;

-- name: put_pool
insert into pools (name, spec, created_at) values (%(name)s, %(spec)s::jsonb, %(now)s)
on conflict (name) do update set spec = excluded.spec;

-- name: pause_pool
update pools set paused_at = coalesce(paused_at, %(now)s), paused_reason = %(reason)s where name = %(name)s;

-- name: quiet_pool
update pools set quiet_until = greatest(quiet_until, %(now)s::timestamptz + %(seconds)s * interval '1 second'), quiet_reason = %(reason)s
where name = %(name)s;

-- name: resume_pool
update pools set paused_at = null, paused_reason = '' where name = %(name)s;

-- name: forget_holds
-- What earlier spawns said of a pool, because it was mended since.
with outcomes as (delete from pool_outcomes where pool = %(name)s and fault <> '' returning 1),
  troubles as (delete from offer_troubles where pool = %(name)s returning 1),
  blocks as (update pools set blocked = '' where name = %(name)s and blocked <> '' returning 1)
select exists (select from outcomes) or exists (select from troubles) or exists (select from blocks);

-- name: delete_pool
update pools set deleted_at = coalesce(deleted_at, %(now)s) where name = %(name)s;

-- name: forget_pool
delete from pools where name = %(name)s;

-- name: mark_cycle
update pools set blocked = %(blocked)s, cycled_at = %(at)s where name = %(pool)s;
