-- The events of a host's sync, one row for all jobs that it took and one for all that it ended. A row and its index
-- entries for each event were an eighth of what a job of no length cost. `batched_events` shows them as `events` does;
-- their ids are from the same sequence. An attempt knows its batches, so that the events of a job are found.

create table event_batches (
  n         bigint generated always as identity primary key,
  tx        xid8 not null default pg_current_xact_id(),
  at        timestamptz not null,
  kind      text not null,
  data      jsonb not null default '{}',
  ids       bigint[] not null,
  began_ids bigint[] not null, -- of job.started, where that is told with the end
  job_ids   text[] not null,
  attempts  integer[] not null,
  epochs    bigint[] not null,
  host_ids  text[] not null,
  queues    text[] not null,
  projects  text[] not null,
  messages  text[] not null
);
create index event_batches_order on event_batches (tx, n);

alter table attempts add column taken_batch bigint, add column ended_batch bigint;

create view batched_events as
select b.n, b.tx, x.id, b.at, x.kind, e.job_id, e.attempt, e.epoch, null::integer as rank, e.host_id, e.queue, e.project,
       x.message, x.data
from event_batches b
cross join lateral unnest(b.ids, b.began_ids, b.job_ids, b.attempts, b.epochs, b.host_ids, b.queues, b.projects, b.messages)
  as e(id, began_id, job_id, attempt, epoch, host_id, queue, project, message)
cross join lateral (
  values (e.began_id, 'job.started', 'attempt ' || e.attempt || ' runs', '{}'::jsonb), (e.id, b.kind, e.message, b.data)
) as x(id, kind, message, data)
where x.id is not null;
