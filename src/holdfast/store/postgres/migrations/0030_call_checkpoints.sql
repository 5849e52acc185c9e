-- What a call left for its next attempt; the bytes are in the blob store.
create table call_checkpoints (
  set_id     text not null,
  index      integer not null,
  blob       text not null,
  size       bigint not null,
  sha256     bytea not null,
  created_at timestamptz not null,
  primary key (set_id, index)
);
