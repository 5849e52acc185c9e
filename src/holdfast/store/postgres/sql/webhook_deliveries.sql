-- Deliveries of events to webhooks. Those of one job are a sequence, delivered in order (HOOK-1).
-- after: webhooks

create table webhook_deliveries (
  id           text primary key,
  webhook_id   text not null references webhooks (id) on delete cascade,
  event_id     text not null,
  event_kind   text not null,
  job_id       text,
  lane         text not null generated always as (coalesce(job_id, '')) stored, -- its sequence
  seq          bigint generated always as identity, -- the order of events, as the hook's cursor passed them
  body         text not null, -- text, not jsonb: every try sends, and signs, the same bytes
  state        text not null default 'pending' constraint webhook_deliveries_state_check check (state in
    ('pending', 'delivered', 'dead')),
  tries        integer not null default 0 check (tries >= 0),
  next_at      timestamptz, -- of the oldest pending one of its lane; null: it waits behind another, or is over
  status       integer,                           -- of the last try's answer
  error        text not null default '',
  created_at   timestamptz not null,
  delivered_at timestamptz,
  unique (webhook_id, event_id),
  constraint webhook_deliveries_due check (next_at is null or state = 'pending'),
  constraint webhook_deliveries_delivered check ((state = 'delivered') = (delivered_at is not null))
) with (fillfactor = 70);
create index webhook_deliveries_due_at on webhook_deliveries (webhook_id, next_at, seq) where next_at is not null;
create unique index webhook_deliveries_one_of_lane on webhook_deliveries (webhook_id, lane) where next_at is not null;
create index webhook_deliveries_order on webhook_deliveries (webhook_id, lane, seq) where state = 'pending';
create index webhook_deliveries_dead on webhook_deliveries (webhook_id) where state = 'dead';
create index webhook_deliveries_of_hook on webhook_deliveries (webhook_id, id);
create index webhook_deliveries_created on webhook_deliveries (created_at) where state <> 'pending';

-- name: hurry_deliveries
update webhook_deliveries set next_at = %(now)s where webhook_id = %(id)s and state = 'pending' and next_at > %(now)s;

-- name: insert_deliveries
-- The recordset keeps the array's order, so `seq` follows the order of events. None is due yet: `promote_sequences`
-- says which are.
insert into webhook_deliveries (id, webhook_id, event_id, event_kind, job_id, body, created_at)
select x.id, x.webhook_id, x.event_id, x.event_kind, x.job_id, x.body, %(now)s
from jsonb_to_recordset(%(rows)s::jsonb) as x(id text, webhook_id text, event_id text, event_kind text, job_id text, body text)
on conflict (webhook_id, event_id) do nothing
returning webhook_id, lane as sequence;

-- name: demote_sequences
-- HOOK-1: a delivery with an older pending one before it waits again, because an older one was sent again. Runs before
-- `promote_sequences`: a unique index allows one due delivery a sequence.
update webhook_deliveries d set next_at = null
from (select distinct * from unnest(%(hooks)s::text[], %(sequences)s::text[])) as l(webhook_id, lane)
where d.webhook_id = l.webhook_id and d.lane = l.lane and d.next_at is not null
  and exists (select from webhook_deliveries o
              where o.webhook_id = d.webhook_id and o.lane = d.lane and o.state = 'pending' and o.seq < d.seq);

-- name: promote_sequences
-- HOOK-1: of each sequence (column lane) the oldest pending delivery becomes due, where none is due.
update webhook_deliveries d set next_at = %(now)s
from (select distinct * from unnest(%(hooks)s::text[], %(sequences)s::text[])) as l(webhook_id, lane)
cross join lateral (
  select p.id, p.next_at from webhook_deliveries p
  where p.webhook_id = l.webhook_id and p.lane = l.lane and p.state = 'pending'
  order by p.seq limit 1) oldest
where d.id = oldest.id and oldest.next_at is null;

-- name: list_due
-- A few per hook, so that one hook with many does not hide the others.
select d.id, d.webhook_id, d.lane as sequence, d.seq, d.tries, d.body, w.url, w.secret, w.service,
       case when w.old_secret_until > coalesce(%(now)s, clock_timestamp()) then w.old_secret end as old_secret
from webhooks w cross join lateral (
  select p.* from webhook_deliveries p
  where p.webhook_id = w.id and p.next_at <= coalesce(%(now)s, clock_timestamp()) and p.id <> all(%(flying)s::text[])
  order by p.next_at, p.seq
  limit %(per_hook)s) d
where w.state = 'active'
order by d.next_at, d.seq;

-- name: record_tries
-- Guarded by the count of tries: a second sender reporting the same try changes nothing. A delivery that was put
-- behind an older one while it was under way stays there.
update webhook_deliveries d set
  state = x.state, tries = d.tries + 1, status = x.status, error = x.error,
  next_at = case when x.state = 'pending' and d.next_at is not null
                 then %(now)s::timestamptz + make_interval(secs => x.delay_seconds) end,
  delivered_at = case when x.state = 'delivered' then %(now)s::timestamptz end
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  delivery_id text, tries integer, state text, delay_seconds double precision, status integer, error text)
where d.id = x.delivery_id and d.state = 'pending' and d.tries = x.tries
returning d.id, d.webhook_id, d.lane as sequence, d.event_id, d.event_kind, d.state, d.tries, d.error;

-- name: list_deliveries
select id, webhook_id, event_id, event_kind, job_id, state, tries, next_at, status, error, created_at, delivered_at
from webhook_deliveries
where webhook_id = %(webhook_id)s and (%(states)s::text[] is null or state = any(%(states)s))
  and (%(before)s::text is null or id < %(before)s)
order by id desc
limit %(limit)s;

-- name: get_delivery
select id, webhook_id, event_id, event_kind, job_id, state, tries, next_at, status, error, created_at, delivered_at, body
from webhook_deliveries where webhook_id = %(webhook_id)s and id = %(id)s;

-- name: redeliver
-- A pending delivery that waits behind another keeps waiting.
update webhook_deliveries set
  state = 'pending', tries = case when state = 'pending' then tries else 0 end,
  next_at = case when next_at is not null then %(now)s::timestamptz end, delivered_at = null
where webhook_id = %(webhook_id)s and id = %(id)s
returning lane as sequence;

-- name: redeliver_dead
update webhook_deliveries set state = 'pending', tries = 0
where webhook_id = %(webhook_id)s and state = 'dead'
returning lane as sequence;

-- name: count_deliveries
select count(*) filter (where state = 'pending') as pending, count(*) filter (where state = 'dead') as dead
from webhook_deliveries where state in ('pending', 'dead');

-- name: prune_deliveries
-- An array is read once. A plan may read `in (select …)` again for each row, and find those beyond the limit when it
-- passes over what it has deleted.
delete from webhook_deliveries where id = any(array(
  select id from webhook_deliveries where state <> 'pending' and created_at < %(before)s
  order by created_at limit %(limit)s for update skip locked));
