-- The end of a call set is an event of the same transaction. A trigger, because a set may end with any of the statements
-- that count its calls, and each of them updates this one column.
create function tell_call_set_end() returns trigger language plpgsql as $$
begin
  insert into events (at, kind, queue, project, message, data)
  values (
    new.ended_at,
    case when new.failed > 0 then 'calls.failed' when new.cancelled > 0 then 'calls.cancelled' else 'calls.succeeded' end,
    new.queue, new.project,
    format('%s of %s calls of %s succeeded, %s failed, %s were cancelled',
           new.succeeded, new.count, new.function, new.failed, new.cancelled),
    jsonb_build_object('set', new.id, 'function', new.function, 'succeeded', new.succeeded, 'failed', new.failed,
                       'cancelled', new.cancelled));
  return null;
end $$;

create trigger call_sets_end after update of ended_at on call_sets for each row
when (old.ended_at is null and new.ended_at is not null) execute function tell_call_set_end();
