-- An end costs less to write.

-- Most attempts are written once, when they have ended (0035). Room for two later versions of a row made the table twice as
-- large, and to grow it is a tenth of what such an end waits for. An attempt that is written when it begins still finds
-- some room.
alter table attempts set (fillfactor = 85);

-- The first attempt of a job has the epoch 1, so the primary key says already that there is one of them.
alter table attempts drop constraint attempts_job_id_epoch_key;
create unique index attempts_later_epochs on attempts (job_id, epoch) where number > 1;

-- What the host told of the end of a job of one task that succeeded, in JSON as it came: to read it into `members` costs
-- more than to insert the row. `members` is empty then, and `members_of` makes it.
alter table attempts add column told text;

create function members_of(a attempts) returns jsonb language sql stable as $$
  select case when a.told is null then a.members else jsonb_build_array(jsonb_build_object(
    'rank', 0, 'host', a.host, 'state', 'done', 'exit_code', 0, 'facts', a.told::jsonb)) end
$$;

-- A column of a batch that says one thing of all its events may say it once.
create or replace view batched_events as
select b.n, b.tx, x.id, b.at, x.kind, e.job_id, x.attempt, coalesce(e.epoch, b.epochs[1]) as epoch, null::integer as rank,
       e.host_id, e.queue, e.project, x.message, x.data
from event_batches b
cross join lateral unnest(b.ids, b.began_ids, b.job_ids, b.attempts, b.epochs, b.host_ids, b.queues, b.projects, b.messages)
  as e(id, began_id, job_id, attempt, epoch, host_id, queue, project, message)
cross join lateral (select coalesce(e.attempt, b.attempts[1]) as attempt) a
cross join lateral (
  values (e.began_id, a.attempt, 'job.started', 'attempt ' || a.attempt || ' runs', '{}'::jsonb),
         (e.id, a.attempt, b.kind, coalesce(e.message, b.messages[1]), b.data)
) as x(id, attempt, kind, message, data)
where x.id is not null;
