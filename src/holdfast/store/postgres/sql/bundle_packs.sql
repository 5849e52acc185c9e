-- Packs: blobs that hold the files of bundles. A project's are its own, because a digest is no key to another project's bytes.

create table bundle_packs (
  pack       text primary key, -- its blob is packs/<pack>
  project    text not null,
  size       bigint not null check (size > 0), -- bytes of the blob
  created_at timestamptz not null
);
create index bundle_packs_of_project on bundle_packs (project);

-- name: insert_pack
insert into bundle_packs (pack, project, size, created_at)
values (%(pack)s, %(project)s, %(size)s, coalesce(%(now)s, clock_timestamp()));

-- name: delete_pack
delete from bundle_packs where pack = %(pack)s;

-- name: measure_bundles
-- A pack is some megabytes, so there are a few thousand rows.
select coalesce(sum(size) filter (where project = %(project)s), 0)::bigint as project, coalesce(sum(size), 0)::bigint as whole
from bundle_packs;

-- name: lock_packs
-- Against the sweep, which deletes packs that no bundle uses.
select pack from bundle_packs where project = %(project)s and pack = any(%(packs)s::text[]) order by pack for key share;

-- name: drop_unused_packs
-- Those that are young may belong to a bundle whose manifest has still to come.
delete from bundle_packs p using (
  select q.pack from bundle_packs q
  where q.created_at < coalesce(%(now)s, clock_timestamp()) - make_interval(secs => %(young_seconds)s)
    and not exists (select from bundle_uses u where u.pack = q.pack)
  order by q.pack limit %(limit)s for update of q skip locked
) d
where p.pack = d.pack and not exists (select from bundle_uses u where u.pack = p.pack)
returning p.pack;

-- name: find_orphan_packs
select n.pack from unnest(%(packs)s::text[]) as n(pack) where not exists (select from bundle_packs b where b.pack = n.pack);
