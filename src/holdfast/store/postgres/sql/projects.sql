-- Projects: their settings, what they use, and the kill switch of retries. A project is made before work names it, because a
-- name that was typed wrong is none; `default` needs no row.

create table projects (
  name       text primary key,
  settings   jsonb not null default '{}',
  created_at timestamptz not null
);

-- name: look_for_quotas
select exists (select from cluster where coalesce(settings->>'quota_jobs', settings->>'quota_gpus') is not null)
    or exists (select from projects where coalesce(settings->>'quota_jobs', settings->>'quota_gpus') is not null) as limited;

-- name: read_projects
select name, settings, created_at from projects order by name;

-- name: read_quota_layers
-- The cluster's settings, and those of the projects named that limit anything.
select c.settings as cluster, (
  select coalesce(jsonb_object_agg(p.name, p.settings), '{}') from projects p where p.name = any(%(names)s)
) as projects
from cluster c;

-- name: lock_quota
-- The project's lock, which needs no row: a transaction that adds to the counted jobs takes it, counts, and holds it
-- until it commits. Always in one order, and after all other locks but those of existing jobs' rows.
select pg_advisory_xact_lock(1903128161, n.key) from (
  select distinct hashtext(name) as key from unnest(%(names)s::text[]) as g(name) order by key
) n;

-- name: lock_project
select name, settings, created_at from projects where name = %(name)s for update;

-- name: put_project
insert into projects (name, settings, created_at) values (%(name)s, %(changes)s::jsonb, %(now)s)
on conflict (name) do update set settings = (projects.settings || %(changes)s::jsonb) - %(unset)s::text[]
returning name;

-- name: delete_project
delete from projects where name = %(name)s;

-- name: list_switched_off
-- A statement of its own after share_switch, so that it reads the change that was waited for.
select name from projects where settings @> '{"retries_enabled": false}';
