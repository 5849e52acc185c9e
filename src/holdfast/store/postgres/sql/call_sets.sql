-- Sets of calls, one for each submission.
-- after: events

-- The counts are written in the transaction of each end, the last statement before its commit, so that the row is locked only for
-- the commit: the transaction that ends the last call must know that it does.
create table call_sets (
  n             bigint generated always as identity primary key,
  id            text not null unique,
  feed          bigint not null,
  queue         text not null,
  project       text not null,
  owner         text not null default '',
  function      text not null,
  priority      smallint not null check (priority between 0 and 100),
  spec          jsonb not null,
  out_dir       text not null default '', -- the folder of the workflow node that it belongs to
  count         integer check (count >= 0), -- null: not known yet
  submitted     integer not null default 0,
  succeeded     integer not null default 0,
  failed        integer not null default 0,
  cancelled     integer not null default 0,
  cut           text not null default '', -- why it will have no more calls, though its client meant to submit more
  singles       boolean not null default false, -- of single calls, whose client never means to submit more
  heard_at      timestamptz not null default now(), -- about when its client was last heard of, while its count is not known
  absent        boolean not null default false, -- closed because its client was heard of no more; open again when it is
  run           text, -- the workflow's node that it belongs to
  node          integer,
  created_at    timestamptz not null,
  cancelled_at  timestamptz, -- as a whole
  cancel_reason text not null default '',
  ended_at      timestamptz,
  constraint call_sets_counts check (succeeded >= 0 and failed >= 0 and cancelled >= 0
    and succeeded + failed + cancelled <= submitted and (count is null or submitted <= count)),
  constraint call_sets_ended check (ended_at is null or (count is not null and succeeded + failed + cancelled = count))
) with (fillfactor = 50);
create index call_sets_of_project on call_sets (project, id);
create index call_sets_ended_at on call_sets (ended_at) where ended_at is not null; -- written once a set
create index call_sets_open on call_sets (heard_at) where count is null and run is null;

-- The end of a call set is an event of the same transaction. A trigger, because a set may end with any of the statements that
-- count its calls, and each of them updates this one column.
create function tell_call_set_end() returns trigger language plpgsql as $$
begin
  insert into events (at, kind, queue, project, message, data)
  values (
    new.ended_at,
    case when new.failed > 0 or new.cut <> '' then 'calls.failed' when new.cancelled > 0 then 'calls.cancelled'
         else 'calls.succeeded' end,
    new.queue, new.project,
    format('%s of %s calls of %s succeeded, %s failed, %s were cancelled%s',
           new.succeeded, new.count, new.function, new.failed, new.cancelled,
           case when new.cut <> '' then '; ' || new.cut else '' end),
    jsonb_build_object('set', new.id, 'function', new.function, 'succeeded', new.succeeded, 'failed', new.failed,
                       'cancelled', new.cancelled)
      || case when new.cut <> '' then jsonb_build_object('cut', new.cut) else '{}' end);
  return null;
end $$;

create trigger call_sets_end after update of ended_at on call_sets for each row
when (old.ended_at is null and new.ended_at is not null) execute function tell_call_set_end();

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
  insert into workflow_outbox (run, node, kind, ref, due_at)
  select run, node, 'call_set', id, ended_at from grown where ended_at is not null and run is not null
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

-- name: read_call_sets
select n, id, spec::text as spec, queue, cancelled_at, cancel_reason, out_dir from call_sets where n = any(%(sets)s);

-- name: lock_call_sets
select n, id, spec::text as spec, queue, cancelled_at, cancel_reason, out_dir from call_sets where n = any(%(sets)s)
order by n for no key update;

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
  insert into workflow_outbox (run, node, kind, ref, due_at)
  select run, node, 'call_set', id, ended_at from counted where ended_at is not null and run is not null
)
select id from counted;

-- name: close_call_set
update call_sets set count = coalesce(count, submitted), cancelled_at = %(now)s, cancel_reason = %(reason)s where n = %(n)s;

-- name: reopen_call_set
update call_sets set cancelled_at = null, cancel_reason = '' where n = %(n)s;

-- name: find_old_sets
-- A run's sets go after it (HISTORY-1): a restart uses their results again.
select n from call_sets s
where ended_at < %(before)s::timestamptz
  and not coalesce((
    select r.ended_at is null or r.ended_at >= %(before)s::timestamptz from workflow_runs r where r.id = s.run limit 1), false)
order by ended_at limit %(limit)s for update skip locked;

-- name: prune_call_sets
delete from call_sets where n = any(%(sets)s);
