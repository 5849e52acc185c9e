-- A set that will have no more calls than it has, though its client meant to submit more: cut says why. heard_at: about when
-- that client was last heard of, for sets whose whole count it has not said; absent: the set was closed because it was heard
-- of no more, and is open again when it is. singles: of single calls, whose client never means to submit more.
alter table call_sets
  add column cut text not null default '',
  add column heard_at timestamptz not null default now(),
  add column absent boolean not null default false,
  add column singles boolean not null default false;
create index call_sets_open on call_sets (heard_at) where count is null and run is null;

create or replace function tell_call_set_end() returns trigger language plpgsql as $$
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
