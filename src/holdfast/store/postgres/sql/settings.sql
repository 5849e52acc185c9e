-- name: write_cluster
-- Raises the revision with the change, so that agents are sent the new watch settings.
update cluster set settings = (settings || %(changes)s::jsonb) - %(unset)s::text[], settings_rev = settings_rev + 1
returning settings_rev;

-- name: lock_cluster
select settings_rev, settings, rules from cluster for update;

-- name: write_rules
update cluster set rules = %(rules)s, settings_rev = settings_rev + 1 returning settings_rev;

-- name: lock_queue
select name, settings, paused_at, paused_reason, hard, created_at from queues where name = %(name)s for no key update;

-- name: put_queue
insert into queues (name, settings, created_at) values (%(name)s, %(changes)s::jsonb, %(now)s)
on conflict (name) do update set settings = (queues.settings || %(changes)s::jsonb) - %(unset)s::text[]
returning name;

-- name: bump_revision
update cluster set settings_rev = settings_rev + 1 returning settings_rev;

-- name: lock_queue_away
-- Conflicts with the key-share lock of submissions, so no job is added while the queue is deleted.
select name from queues where name = %(name)s for update;

-- name: has_unfinished
select exists (select from jobs where queue = %(name)s and state = 'queued')
    or exists (select from jobs where queue = %(name)s and state in ('reserved', 'running', 'draining'))
    or exists (select from jobs where queue = %(name)s and state = 'waiting');

-- name: delete_queue
delete from queues where name = %(name)s;

-- name: pause_queue
update queues set paused_at = coalesce(paused_at, %(now)s), paused_reason = %(reason)s, hard = %(hard)s where name = %(name)s;

-- name: resume_queue
update queues set paused_at = null, paused_reason = '', hard = false where name = %(name)s;

-- name: running_in_queue
select id from jobs where queue = %(name)s and state in ('reserved', 'running') order by id;
