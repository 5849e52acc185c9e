-- Jobs that wait for the end of others: `submit --after`.

-- One row for each end that is still waited for. Rows go when their wait is over, so that the table stays small.
create table job_dependencies (
  child  text not null,
  parent text not null,
  wants  text not null constraint job_dependencies_wants_check check (wants in ('ok', 'any', 'failed')),
  primary key (child, parent)
);
create index job_dependencies_parent on job_dependencies (parent);

-- Whether a job waits, or has waited, for this one. Only ended jobs of this kind are in the index, until the loop has
-- seen them: what it looks for is found at once, and ends that nothing waits for cost nothing.
alter table jobs add column awaited boolean not null default false;
create index jobs_awaited on jobs (id) where awaited and ended_at is not null;

-- A new cause, in every column that holds one.
alter table jobs drop constraint jobs_cause_check;
alter table jobs add constraint jobs_cause_check check (cause in
  ('nonzero_exit', 'oom_killed', 'image_pull_failure', 'start_timeout', 'unknown', 'agent_transient', 'gpu_fault',
   'time_limit', 'stalled', 'gpu_wedged', 'preempted', 'host_drained', 'scaled_down', 'sibling_drained',
   'user_cancelled', 'dependency', 'validation_error', 'quota_exceeded', 'malformed_report'));
alter table jobs drop constraint jobs_drain_cause_check;
alter table jobs add constraint jobs_drain_cause_check check (drain_cause in
  ('nonzero_exit', 'oom_killed', 'image_pull_failure', 'start_timeout', 'unknown', 'agent_transient', 'gpu_fault',
   'time_limit', 'stalled', 'gpu_wedged', 'preempted', 'host_drained', 'scaled_down', 'sibling_drained',
   'user_cancelled', 'dependency', 'validation_error', 'quota_exceeded', 'malformed_report'));
alter table attempts drop constraint attempts_cause_check;
alter table attempts add constraint attempts_cause_check check (cause in
  ('nonzero_exit', 'oom_killed', 'image_pull_failure', 'start_timeout', 'unknown', 'agent_transient', 'gpu_fault',
   'time_limit', 'stalled', 'gpu_wedged', 'preempted', 'host_drained', 'scaled_down', 'sibling_drained',
   'user_cancelled', 'dependency', 'validation_error', 'quota_exceeded', 'malformed_report'));
