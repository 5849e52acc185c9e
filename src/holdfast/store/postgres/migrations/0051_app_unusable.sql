-- A cause of its own for a host that lists an app and cannot run it.
alter table jobs
  drop constraint jobs_cause_check, drop constraint jobs_drain_cause_check,
  add constraint jobs_cause_check check (cause = any ('{nonzero_exit,oom_killed,image_pull_failure,start_timeout,app_unusable,unknown,agent_transient,gpu_fault,time_limit,stalled,gpu_wedged,preempted,host_drained,scaled_down,sibling_drained,user_cancelled,dependency,validation_error,quota_exceeded,malformed_report}')),
  add constraint jobs_drain_cause_check check (drain_cause = any ('{nonzero_exit,oom_killed,image_pull_failure,start_timeout,app_unusable,unknown,agent_transient,gpu_fault,time_limit,stalled,gpu_wedged,preempted,host_drained,scaled_down,sibling_drained,user_cancelled,dependency,validation_error,quota_exceeded,malformed_report}'));

alter table attempts
  drop constraint attempts_cause_check,
  add constraint attempts_cause_check check (cause = any ('{nonzero_exit,oom_killed,image_pull_failure,start_timeout,app_unusable,unknown,agent_transient,gpu_fault,time_limit,stalled,gpu_wedged,preempted,host_drained,scaled_down,sibling_drained,user_cancelled,dependency,validation_error,quota_exceeded,malformed_report}'));
