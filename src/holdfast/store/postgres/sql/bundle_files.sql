-- Where the bytes of each digest stand: in which of its project's packs, and at which offset of it.
-- after: bundle_packs

create table bundle_files (
  project text not null,
  sha256  bytea not null check (octet_length(sha256) = 32),
  pack    text not null references bundle_packs on delete cascade,
  at      bigint not null,
  size    integer not null,
  primary key (project, sha256)
);
create index bundle_files_of_pack on bundle_files (pack);

-- name: insert_bundle_files
-- Returns how many are new; of the others the first bytes stay.
with put as (
  insert into bundle_files (project, sha256, pack, at, size)
  select %(project)s, decode(g.sha256, 'hex'), %(pack)s, g.at, g.size
  from unnest(%(digests)s::text[], %(offsets)s::bigint[], %(sizes)s::integer[]) as g(sha256, at, size)
  on conflict (project, sha256) do nothing
  returning 1
)
select count(*) from put;

-- name: find_bundle_files
select encode(f.sha256, 'hex') as sha256, f.pack, f.at from bundle_files f
where f.project = %(project)s
  and f.sha256 = any(array(select decode(g.d, 'hex') from unnest(%(digests)s::text[]) as g(d)));
