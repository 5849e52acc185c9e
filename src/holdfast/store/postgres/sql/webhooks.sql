-- Webhooks: addresses that are told of events. Notice targets, which people are told through, are rows of it, too: they
-- share the deliveries, and differ in what is sent and in how.

create table webhooks (
  id               text primary key,
  name             text not null default '',
  url              text not null,
  secret           text not null, -- signs every delivery, so it is kept as it is; shown once
  old_secret       text,          -- signs too until then, after a rotation
  old_secret_until timestamptz,
  events           text[] not null default '{}', -- patterns of event kinds, "job.*"; empty: all
  service          text not null default '',     -- of a notice target, whose url is a secret; empty: a webhook
  project          text,                         -- null: every project
  state            text not null default 'active' constraint webhooks_state_check check (state in ('active', 'paused')),
  reason           text not null default '',     -- why it is paused
  cursor           text not null,                -- the last event looked at
  created_at       timestamptz not null,
  constraint webhooks_old_secret check ((old_secret is null) = (old_secret_until is null))
);
create unique index webhooks_notice on webhooks (name, coalesce(project, '')) where service <> '';

-- name: insert_webhook
-- The cursor begins at the oldest transaction that may still commit: events already visible are older, and none that
-- commits from now on is missed (STORE-4). A repeated id is a repeated call.
insert into webhooks (id, name, url, secret, events, project, cursor, created_at)
values (%(id)s, %(name)s, %(url)s, %(secret)s, %(events)s, %(project)s,
        lpad(to_hex(pg_snapshot_xmin(pg_current_snapshot())::text::bigint), 12, '0') || '-000000000000', %(now)s)
on conflict (id) do nothing
returning id;

-- name: list_webhooks
-- Counts come from the partial indexes, so delivered rows are not read. A notice target's url is not shown.
select w.id, w.name, case when w.service = '' then w.url else '' end as url, w.events, w.project, w.state, w.reason, w.created_at,
       w.old_secret_until, w.service,
       (select count(*) from webhook_deliveries d where d.webhook_id = w.id and d.state = 'pending') as pending,
       (select count(*) from webhook_deliveries d where d.webhook_id = w.id and d.state = 'dead') as dead
from webhooks w
where (%(id)s::text is null or w.id = %(id)s) and (w.service <> '') = %(notices)s
order by w.created_at, w.id;

-- name: lock_webhooks
-- In id order, as every writer of several locks them.
select id, name, case when service = '' then url else '' end as url, events, project, state, reason, created_at,
       old_secret_until, service
from webhooks where id = any(%(ids)s) order by id for update;

-- name: read_webhook_target
select url, secret, case when old_secret_until > coalesce(%(now)s, clock_timestamp()) then old_secret end as old_secret
from webhooks where id = %(id)s and (service <> '') = %(notice)s;

-- name: write_webhook
update webhooks set name = %(name)s, url = %(url)s, events = %(events)s, project = %(project)s where id = %(id)s;

-- name: rotate_webhook
-- With no grace the old secret ends now.
update webhooks set
  old_secret = case when %(grace)s::double precision > 0 then secret end,
  old_secret_until = case when %(grace)s::double precision > 0 then %(now)s::timestamptz + make_interval(secs => %(grace)s) end,
  secret = %(secret)s
where id = %(id)s;

-- name: pause_webhook
update webhooks set state = 'paused', reason = %(reason)s where id = %(id)s;

-- name: resume_webhook
update webhooks set state = 'active', reason = '' where id = %(id)s;

-- name: delete_webhook
delete from webhooks where id = %(id)s;

-- name: list_subscriptions
-- Counting stops at the bound, because a full hook has no room, however full it is.
select w.id as webhook_id, w.cursor, w.events, w.project, w.name, w.service, %(max)s - p.pending as room
from webhooks w cross join lateral (
  select count(*)::integer as pending from (
    select from webhook_deliveries d where d.webhook_id = w.id and d.state = 'pending' limit %(max)s) bounded) p
where w.state = 'active' and p.pending < %(max)s
order by w.id;

-- name: move_cursors
-- Guarded by the cursor: of two leaders that read the same events one writes.
update webhooks w set cursor = x.after
from jsonb_to_recordset(%(rows)s::jsonb) as x(webhook_id text, before text, after text)
where w.id = x.webhook_id and w.cursor = x.before and w.state = 'active'
returning w.id;

-- ---- Notice targets.

-- name: put_notice_target
-- A target that is there keeps its deliveries, and those that are pending go to the new url.
insert into webhooks (id, name, url, secret, events, project, service, cursor, created_at)
values (%(id)s, %(name)s, %(url)s, '', %(events)s, %(project)s, %(service)s,
        lpad(to_hex(pg_snapshot_xmin(pg_current_snapshot())::text::bigint), 12, '0') || '-000000000000', %(now)s)
on conflict (name, coalesce(project, '')) where service <> ''
do update set url = excluded.url, service = excluded.service, events = excluded.events, state = 'active', reason = ''
returning id, xmax = 0 as made;

-- name: list_shown_targets
-- Those that a job of the project may name, its own before the cluster's; without a project all of them.
select name from webhooks where service <> '' and (project is null or project = %(project)s);

-- name: find_last_error
select webhook_id, error from (
  select distinct on (webhook_id) webhook_id, error, status, id from webhook_deliveries
  where webhook_id = any(%(ids)s) and tries > 0 order by webhook_id, id desc) last
where error <> '';
