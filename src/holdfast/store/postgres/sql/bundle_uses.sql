-- Which packs a bundle needs. A pack without a use is deleted by the sweep.
-- after: bundles, bundle_packs

create table bundle_uses (
  project text not null,
  digest  text not null,
  pack    text not null references bundle_packs,
  primary key (project, digest, pack),
  foreign key (project, digest) references bundles on delete cascade
);
create index bundle_uses_of_pack on bundle_uses (pack);

-- name: insert_bundle_uses
insert into bundle_uses (project, digest, pack)
select %(project)s, %(digest)s, g.pack from unnest(%(packs)s::text[]) as g(pack)
on conflict do nothing;

-- name: is_pack_used
select true from bundle_uses where project = %(project)s and digest = %(digest)s and pack = %(pack)s;
