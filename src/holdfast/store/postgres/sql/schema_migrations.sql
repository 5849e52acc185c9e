-- The versions of the schema that this database has had. `schema` is the name of the one that it was made with.

create table schema_migrations (
  version    integer primary key,
  name       text not null,
  checksum   text not null, -- SHA-256 of its statements
  applied_at timestamptz not null default clock_timestamp()
);
