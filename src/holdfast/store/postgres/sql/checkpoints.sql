-- Checkpoints: what a task left for the attempt after it. The bytes are in the blob store under `blob`; a row is written only
-- when they are all there and their checksum is right, so a torn upload never replaces a good one.

create table checkpoints (
  job_id     text not null,
  rank       integer not null check (rank >= 0),
  number     bigint not null check (number >= 1), -- grows with every checkpoint of the rank
  epoch      bigint not null check (epoch >= 1),
  attempt    integer not null check (attempt >= 1),
  step       bigint,
  size       bigint not null check (size >= 0), -- bytes
  sha256     bytea not null check (octet_length(sha256) = 32),
  blob       text not null,
  created_at timestamptz not null,
  primary key (job_id, rank, number)
);

-- name: find_older_checkpoint
select job_id, rank, number, epoch, attempt, step, size, encode(sha256, 'hex') as sha256, created_at from checkpoints
where job_id = %(job_id)s and rank = %(rank)s and number < %(number)s order by number desc limit 1;

-- name: insert_checkpoint
insert into checkpoints (job_id, rank, number, epoch, attempt, step, size, sha256, blob, created_at)
select %(job_id)s, %(rank)s, coalesce(max(c.number), 0) + 1, %(epoch)s, %(attempt)s, %(step)s, %(size)s, %(sha256)s, %(blob)s,
       coalesce(%(now)s, clock_timestamp())
from checkpoints c where c.job_id = %(job_id)s and c.rank = %(rank)s
returning job_id, rank, number, epoch, attempt, step, size, encode(sha256, 'hex') as sha256, created_at;

-- name: drop_old_checkpoints
delete from checkpoints c where c.job_id = %(job_id)s and c.rank = %(rank)s and c.number in (
  select o.number from checkpoints o where o.job_id = %(job_id)s and o.rank = %(rank)s order by o.number desc offset %(keep)s)
returning c.blob;

-- name: find_checkpoint
select job_id, rank, number, epoch, attempt, step, size, encode(sha256, 'hex') as sha256, created_at, blob from checkpoints
where job_id = %(job_id)s and rank = %(rank)s and (%(number)s::bigint is null or number = %(number)s)
  and (%(epoch)s::bigint is null or epoch = %(epoch)s)
order by number desc limit 1;

-- name: list_checkpoints
select job_id, rank, number, epoch, attempt, step, size, encode(sha256, 'hex') as sha256, created_at from checkpoints
where job_id = %(job_id)s order by rank, number;

-- name: find_newest_checkpoints
-- One backward step in the primary key for each rank.
select c.* from unnest(%(job_ids)s::text[], %(ranks)s::integer[]) as w(job_id, rank), lateral (
  select job_id, rank, number, epoch, attempt, step, size, encode(sha256, 'hex') as sha256, created_at from checkpoints o
  where o.job_id = w.job_id and o.rank = w.rank order by o.number desc limit 1) as c;

-- name: delete_checkpoints
delete from checkpoints where job_id = %(job_id)s and (%(rank)s::integer is null or rank = %(rank)s)
  and (%(number)s::bigint is null or number = %(number)s)
returning blob;

-- name: find_unneeded_blobs
-- Of jobs that have succeeded or are gone. The table holds a few rows for each rank of the jobs that save, so it is
-- read whole.
select c.blob from checkpoints c left join jobs j on j.id = c.job_id
where j.id is null or j.state = 'succeeded' limit %(limit)s;

-- name: forget_blobs
-- The blob's name leads to its row: the part before the slash is the job, which the primary key begins with.
delete from checkpoints c using unnest(%(blobs)s::text[]) as n(name)
where c.job_id = split_part(n.name, '/', 1) and c.blob = n.name;

-- name: list_named_blobs
-- Of every kind the newest, by which the blob store is known that holds them.
(select blob from checkpoints order by created_at desc limit %(limit)s)
union all (select 'packs/' || pack from bundle_packs order by created_at desc limit %(limit)s)
union all (select 'plans/' || plan from bundles order by created_at desc limit %(limit)s)
union all (select blob from call_checkpoints limit %(limit)s);

-- name: find_orphan_blobs
-- A blob's name begins with its job's id. A blob of an unknown job may belong to another database that uses the same
-- place, so it stays. Bytes go by the rows of an answer, and never because rows are absent (DOUBT-3).
select n.name as blob from unnest(%(blobs)s::text[]) as n(name)
where exists (select 1 from jobs j where j.id = split_part(n.name, '/', 1))
  and not exists (select 1 from checkpoints c where c.job_id = split_part(n.name, '/', 1) and c.blob = n.name);

-- name: read_save_distances
-- How far apart the saves of a job were, from those that are kept.
select c.job_id, (sum(c.seconds) / sum(c.gaps))::double precision as seconds
from (select job_id, extract(epoch from max(created_at) - min(created_at)) as seconds, count(*) - 1 as gaps
      from checkpoints where job_id = any(%(jobs)s) group by job_id, rank, attempt having count(*) > 1) c
group by c.job_id;
