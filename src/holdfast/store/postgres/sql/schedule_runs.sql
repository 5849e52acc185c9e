-- What became of each time of a schedule (TIME-1: a time is there once).

create table schedule_runs (
  schedule_id text not null,
  due_at      timestamptz not null,
  at          timestamptz not null,
  outcome     text not null constraint schedule_runs_outcome_check check (outcome in ('submitted', 'skipped', 'refused')),
  reason      text not null default '',
  job_id      text,
  primary key (schedule_id, due_at),
  constraint schedule_runs_job check ((outcome = 'submitted') = (job_id is not null))
);
create index schedule_runs_at on schedule_runs (at);

-- name: delete_schedule_runs
delete from schedule_runs where schedule_id = %(id)s;

-- name: insert_schedule_run
insert into schedule_runs (schedule_id, due_at, at, outcome, reason, job_id)
values (%(schedule_id)s, %(due_at)s, %(now)s, %(outcome)s, %(reason)s, %(job_id)s);

-- name: list_schedule_runs
select due_at, at, outcome, reason, job_id from schedule_runs where schedule_id = %(id)s order by due_at desc limit %(limit)s;

-- name: prune_schedule_runs
delete from schedule_runs where (schedule_id, due_at) in (
  select schedule_id, due_at from schedule_runs where at < %(before)s order by at limit %(limit)s);
