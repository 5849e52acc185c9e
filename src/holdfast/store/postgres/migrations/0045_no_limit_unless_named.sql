-- A job has no time limit unless its user, its queue or its project names one: the limits that every cluster began with
-- are those of calls now, which need no setting. One that was set to another value stays.
with changed as (
  update queues set settings = settings - 'time_limit_seconds'
  where (name = 'gpu' and settings->'time_limit_seconds' = '8100') or (name = 'cpu' and settings->'time_limit_seconds' = '2100')
  returning name
)
update cluster set settings_rev = settings_rev + 1 where exists (select from changed);

-- How long earlier jobs of a name took. Only of jobs that their users named; no column of it ever changes.
create index jobs_named on jobs (project, name, id) where spec ? 'name' and array_id is null and not spec ? 'executor';
