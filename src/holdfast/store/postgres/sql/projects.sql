-- Projects: their settings, what they use, and the kill switch of retries. A project is made before work names it, because a
-- name that was typed wrong is none; `default` needs no row.

create table projects (
  name        text primary key,
  settings    jsonb not null default '{}',
  created_at  timestamptz not null,
  -- What it has spent in a month, as the leader last counted it, and what follows (SPEND-1…3).
  spent_month text not null default '', -- as 2026-11
  spent_usd   double precision not null default 0,
  told        integer not null default 0, -- the percentage of its budget that people were last told of
  held        text not null default ''    -- why no job of it may start; empty: jobs may (QUOTA-3)
);

-- name: look_for_quotas
select exists (select from cluster where coalesce(settings->>'quota_jobs', settings->>'quota_gpus', nullif(settings->>'at_budget', 'notice')) is not null)
    or exists (select from projects where coalesce(settings->>'quota_jobs', settings->>'quota_gpus', nullif(settings->>'at_budget', 'notice')) is not null) as limited;

-- name: read_projects
select name, settings, created_at, spent_month, spent_usd, told, held from projects order by name;

-- name: read_quota_layers
-- The cluster's settings, and those of the projects named that limit anything.
select c.settings as cluster, (
  select coalesce(jsonb_object_agg(p.name, p.settings), '{}') from projects p where p.name = any(%(names)s)
) as projects, (
  select coalesce(jsonb_object_agg(p.name, p.held), '{}') from projects p where p.name = any(%(names)s) and p.held <> ''
) as held
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

-- name: write_spends
-- A project without settings of its own gets a row once it has spent something, because a budget may be the cluster's.
insert into projects (name, created_at, spent_month, spent_usd, told, held)
select x.name, %(now)s, x.month, x.usd, x.told, x.held
from jsonb_to_recordset(%(rows)s::jsonb) as x(name text, month text, usd double precision, told integer, held text)
on conflict (name) do update
set spent_month = excluded.spent_month, spent_usd = excluded.spent_usd, told = excluded.told, held = excluded.held;

-- name: delete_project
delete from projects where name = %(name)s;

-- name: list_switched_off
-- A statement of its own after share_switch, so that it reads the change that was waited for.
select name from projects where settings @> '{"retries_enabled": false}';
