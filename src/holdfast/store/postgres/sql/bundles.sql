-- Bundles: the manifest of a folder's files, by its own digest. The bytes of the files are in packs.

create table bundles (
  project      text not null,
  digest       text not null,
  plan         text not null, -- its manifest and the places of its bytes are the blob plans/<plan>
  files        integer not null,
  bytes        bigint not null,
  created_at   timestamptz not null,
  last_used_at timestamptz not null,
  primary key (project, digest)
);
create index bundles_of_plan on bundles (plan);

-- name: insert_bundle
-- A repeat changes nothing but the time of its use, and returns the blob that stays.
insert into bundles (project, digest, plan, files, bytes, created_at, last_used_at)
values (%(project)s, %(digest)s, %(plan)s, %(files)s, %(bytes)s, coalesce(%(now)s, clock_timestamp()),
        coalesce(%(now)s, clock_timestamp()))
on conflict (project, digest) do update set last_used_at = greatest(bundles.last_used_at, excluded.last_used_at)
returning plan;

-- name: find_bundle
select project, digest, plan, files, bytes, created_at, last_used_at from bundles
where project = %(project)s and digest = %(digest)s;

-- name: use_bundles
-- Also what is named seldom is used: an array's or a schedule's is touched when a person submits it.
update bundles b set last_used_at = greatest(b.last_used_at, coalesce(%(now)s, clock_timestamp()))
from unnest(%(projects)s::text[], %(digests)s::text[]) as g(project, digest)
where b.project = g.project and b.digest = g.digest
returning b.project, b.digest;

-- name: drop_unused_bundles
-- A bundle stays while anything on record names it (`bundle_references`), and some days after its last use.
delete from bundles b using (
  select c.project, c.digest from bundles c
  where c.last_used_at < coalesce(%(now)s, clock_timestamp()) - make_interval(secs => %(keep_seconds)s)
    and not exists (select from bundle_references r where r.project = c.project and r.digest = c.digest)
  limit %(limit)s
) d
where b.project = d.project and b.digest = d.digest
returning b.plan;

-- name: find_orphan_plans
select n.plan from unnest(%(plans)s::text[]) as n(plan) where not exists (select from bundles b where b.plan = n.plan);
