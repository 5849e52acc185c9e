-- What a call left for its next attempt; the bytes are in the blob store.

create table call_checkpoints (
  set_id text not null,
  index  integer not null,
  blob   text not null,
  size   bigint not null, -- bytes
  sha256 bytea not null,
  primary key (set_id, index)
);

-- name: read_call_checkpoint
select s.id as set_id, %(index)s::integer as index, c.blob, coalesce(c.size, 0) as size,
       coalesce(encode(c.sha256, 'hex'), '') as sha256
from call_sets s left join call_checkpoints c on c.set_id = s.id and c.index = %(index)s
where s.n = %(n)s;

-- name: list_saved_calls
-- Those of the calls of which a checkpoint is kept.
select g.set_n, g.index from unnest(%(sets)s::bigint[], %(indices)s::integer[]) as g(set_n, index)
cross join lateral (select id from call_sets where n = g.set_n limit 1) s
cross join lateral (select from call_checkpoints c where c.set_id = s.id and c.index = g.index limit 1) c;

-- name: put_call_checkpoint
-- Returns the blob that it replaced.
with before as (
  select c.blob from call_checkpoints c join call_sets s on s.id = c.set_id where s.n = %(n)s and c.index = %(index)s
), put as (
  insert into call_checkpoints (set_id, index, blob, size, sha256)
  select s.id, %(index)s, %(blob)s, %(size)s, %(sha256)s from call_sets s where s.n = %(n)s
  on conflict (set_id, index) do update
    set blob = excluded.blob, size = excluded.size, sha256 = excluded.sha256
)
select blob from before;

-- name: find_unneeded_call_blobs
-- The table holds a row for each call that saved and has not succeeded, so it is read whole.
select c.blob from call_checkpoints c left join call_sets s on s.id = c.set_id
where s.id is null or exists (
  select 1 from (
    select r.last, r.state from call_results r where r.set_n = s.n and r.first <= c.index order by r.first desc limit 1
  ) r where r.last > c.index and r.state = 1)
limit %(limit)s;

-- name: forget_call_blobs
delete from call_checkpoints c using json_to_recordset(%(rows)s::json) as g(set_id text, index integer, blob text)
where c.set_id = g.set_id and c.index = g.index and c.blob = g.blob;

-- name: find_orphan_call_blobs
-- A blob of an unknown set may belong to another database that uses the same place, so it stays.
select g.blob from json_to_recordset(%(rows)s::json) as g(set_id text, index integer, blob text)
where exists (select 1 from call_sets s where s.id = g.set_id)
  and not exists (select 1 from call_checkpoints c where c.set_id = g.set_id and c.index = g.index and c.blob = g.blob);
