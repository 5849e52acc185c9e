-- Queues: the lanes that jobs wait in, each with its settings. The first ones are `core.settings.resolve.BUILTIN_QUEUES`.

create table queues (
  name          text primary key,
  settings      jsonb not null default '{}',
  paused_at     timestamptz, -- null: open
  paused_reason text not null default '',
  hard          boolean not null default false, -- the pause stopped what ran, too
  created_at    timestamptz not null default clock_timestamp()
);

-- name: hold_queues
-- A key-share lock lets submissions run side by side and with pauses, but not with the queue's deletion.
select name from queues where name = any(%(names)s) order by name for key share;

-- name: read_queues
select q.name, q.settings, q.paused_at, q.paused_reason, q.hard, q.created_at from queues q order by q.name;

-- name: share_queues
-- Locked before hosts and jobs: a pause waits for reservations under way, and then sees them.
select q.name, q.paused_at is not null as paused from queues q
where q.name = any(%(names)s::text[])
order by q.name
for share;

-- name: lock_queue
select name, settings, paused_at, paused_reason, hard, created_at from queues where name = %(name)s for no key update;

-- name: put_queue
insert into queues (name, settings, created_at) values (%(name)s, %(changes)s::jsonb, %(now)s)
on conflict (name) do update set settings = (queues.settings || %(changes)s::jsonb) - %(unset)s::text[]
returning name;

-- name: lock_queue_away
-- Conflicts with the key-share lock of submissions, so no job is added while the queue is deleted.
select name from queues where name = %(name)s for update;

-- name: delete_queue
delete from queues where name = %(name)s;

-- name: pause_queue
update queues set paused_at = coalesce(paused_at, %(now)s), paused_reason = %(reason)s, hard = %(hard)s where name = %(name)s;

-- name: resume_queue
update queues set paused_at = null, paused_reason = '', hard = false where name = %(name)s;
