-- A project is made before work names it, because a name that was typed wrong is none. Those that work names already are made.
insert into projects (name, settings, created_at)
select name, '{}', now() from (
  select 'default' as name
  union select project from jobs
  union select project from arrays
  union select project from call_sets
  union select project from workflow_runs
  union select project from schedules
) named
on conflict (name) do nothing;
