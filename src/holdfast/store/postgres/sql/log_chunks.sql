-- Chunks of output: the bytes of `log_streams`, as they came.

create table log_chunks (
  job_id   text not null,
  attempt  integer not null,
  rank     integer not null,
  stream   text not null,
  "offset" bigint not null check ("offset" >= 0),
  length   integer not null check (length > 0),
  data     bytea not null,
  at       timestamptz not null default now(), -- when the controller was given them, for readers that ask for times
  primary key (job_id, attempt, rank, stream, "offset"),
  constraint log_chunks_length check (length = octet_length(data))
);

-- name: find_overlaps
-- No chunk is longer than `longest`, so one that reaches into the span begins at most so far before it.
select "offset", length from log_chunks
where job_id = %(job_id)s and attempt = %(attempt)s and rank = %(rank)s and stream = %(stream)s
  and "offset" >= %(start)s - %(longest)s and "offset" < %(end)s and "offset" + length > %(start)s
order by "offset";

-- name: insert_chunks
insert into log_chunks (job_id, attempt, rank, stream, "offset", length, data, at)
select %(job_id)s, %(attempt)s, %(rank)s, %(stream)s, x.at, octet_length(x.data), x.data,
  coalesce(%(now)s::timestamptz, now())
from unnest(%(offsets)s::bigint[], %(pieces)s::bytea[]) as x(at, data);

-- name: drop_chunks
-- Deletes the chunks between head and tail. Earlier calls have emptied all but the end of that range, so it reads few
-- rows.
with dropped as (
  delete from log_chunks
  where job_id = %(job_id)s and attempt = %(attempt)s and rank = %(rank)s and stream = %(stream)s
    and "offset" >= %(head)s and "offset" < %(tail_start)s and "offset" + length <= %(tail_start)s
  returning length
)
select coalesce(sum(length), 0) from dropped;

-- name: read_log
-- Chunks that begin before the window's end; the caller trims the first and the last.
select "offset", data, at from log_chunks
where job_id = %(job_id)s and attempt = %(attempt)s and rank = %(rank)s and stream = %(stream)s
  and "offset" + length > %(offset)s
order by "offset"
limit %(limit)s;

-- name: prune_chunks
delete from log_chunks where job_id = any(%(ids)s);
