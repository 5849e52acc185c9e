-- Supervised jobs: a member that fell is replaced while the others run on.
--
-- A task that is `blocked` in a live attempt is a member that waits for another host; `replaced` counts how often that was so.
alter table tasks add column replaced integer not null default 0 check (replaced >= 0);
alter table tasks add column reserved_at timestamptz; -- of a replacement: since when it has its place
alter table tasks add column ready_at timestamptz;    -- blocked: not before
-- A member may be stopped by itself (its host is drained); all others are stopped by their job's drain.
alter table tasks add column stop_cause text;
alter table tasks add column stop_reason text;
alter table tasks add column stop_hard boolean not null default false;
alter table tasks add constraint tasks_blocked_ready check ((state = 'blocked') = (ready_at is not null));
create index tasks_blocked on tasks (job_id) where state = 'blocked';
create index tasks_fallen on tasks (job_id) where state in ('failed', 'preempted');

-- Machines the script gave up: not used again in this attempt.
alter table jobs add column barred_hosts text[] not null default '{}';

-- Which host stood in where, under which epoch: who may still send log bytes, forensics and ends of it.
-- log_base: by stream, where its bytes begin in the rank's log, which goes on where its predecessor's ended (LOG-3).
-- number: among the rank's replacements in this attempt.
create table replacements (
  job_id   text not null,
  rank     integer not null check (rank >= 1),
  epoch    bigint not null check (epoch >= 1),
  attempt  integer not null check (attempt >= 1),
  number   integer not null check (number >= 1),
  host_id  text not null,
  at       timestamptz not null,
  log_base jsonb not null default '{}',
  primary key (job_id, rank, epoch)
);
