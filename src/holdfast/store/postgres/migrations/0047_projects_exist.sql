-- A project is made before work names it, because a name that was typed wrong is none. Those that work names already are
-- made; `default` needs no row. Nothing is inserted where there are none, because each insert is a change of settings.
do $$
declare
  names text[];
begin
  select array_agg(name) into names from (
    select project as name from jobs
    union select project from arrays
    union select project from call_sets
    union select project from workflow_runs
    union select project from schedules
  ) named
  where name <> 'default';
  if names is not null then
    insert into projects (name, settings, created_at) select name, '{}', now() from unnest(names) as n(name)
    on conflict (name) do nothing;
  end if;
end $$;
