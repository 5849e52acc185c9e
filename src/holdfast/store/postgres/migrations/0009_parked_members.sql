-- A member whose starts fail again and again is parked: `blocked`, and no time at which it is placed. start_failures: in a row.
alter table tasks add column start_failures integer not null default 0 check (start_failures >= 0);
alter table tasks drop constraint tasks_blocked_ready;
alter table tasks add constraint tasks_blocked_ready check (state = 'blocked' or ready_at is null);
-- What was gathered of an earlier life of a rank stays beside its successor's.
alter table forensics drop constraint forensics_pkey;
alter table forensics add constraint forensics_pkey primary key (job_id, attempt, rank, epoch);
