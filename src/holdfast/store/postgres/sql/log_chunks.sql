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
  bloom    bytea, -- the grams of the chunk and of the 64 bytes before it (core/logs/grams.py); null where those are not known
  begins_line boolean not null default false, -- known to begin at the start of a line
  primary key (job_id, attempt, rank, stream, "offset"),
  constraint log_chunks_length check (length = octet_length(data))
);
-- At most 4 KiB, beside the row's key, so that a search reads neither a second table nor a packed value.
alter table log_chunks alter column bloom set storage plain;

-- name: find_overlaps
-- No chunk is longer than `longest`, so one that reaches into the span begins at most so far before it.
select "offset", length from log_chunks
where job_id = %(job_id)s and attempt = %(attempt)s and rank = %(rank)s and stream = %(stream)s
  and "offset" >= %(start)s - %(longest)s and "offset" < %(end)s and "offset" + length > %(start)s
order by "offset";

-- name: insert_chunks
insert into log_chunks (job_id, attempt, rank, stream, "offset", length, data, at, bloom, begins_line)
select %(job_id)s, %(attempt)s, %(rank)s, %(stream)s, x.at, octet_length(x.data), x.data,
  coalesce(%(now)s::timestamptz, now()), x.bloom, x.begins
from unnest(%(offsets)s::bigint[], %(pieces)s::bytea[], %(blooms)s::bytea[], %(begins)s::boolean[])
  as x(at, data, bloom, begins);

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

-- name: find_chunks
-- Chunks from a place on in each of some streams, in order; of those with a bloom only the ones that may hold one of
-- some texts (GREP-1), and the last one looked at, which says how far that was. A text is hashes[lows[n]..highs[n]].
select s.n, c."offset", c.length, c.begins_line, c.looked, c.may_hold
from unnest(%(jobs)s::text[], %(attempts)s::integer[], %(ranks)s::integer[], %(streams)s::text[], %(starts)s::bigint[])
  with ordinality as s(job_id, attempt, rank, stream, start, n)
cross join lateral (
  select f.*, row_number() over (order by f."offset") as looked, f.at >= coalesce(%(since)s::timestamptz, f.at)
    and (f.bloom is null or %(all)s::boolean or exists (
      select from unnest(%(lows)s::integer[], %(highs)s::integer[]) as t(low, high)
      where not exists (
        select from generate_series(t.low, t.high) as i
        where get_bit(f.bloom, ((%(hashes)s::integer[])[i] & (octet_length(f.bloom) * 8 - 1))::bigint) = 0))) as may_hold
  from (
    select "offset", length, begins_line, bloom, at from log_chunks
    where job_id = s.job_id and attempt = s.attempt and rank = s.rank and stream = s.stream and "offset" >= s.start
    order by "offset" limit %(limit)s
  ) f
) c
where c.may_hold or c.looked = %(limit)s
order by s.n, c."offset";

-- name: list_log_keys
-- Where the chunks from a place on begin and when they came, the first of each of some streams.
select s.n, c."offset", c.length, c.at
from unnest(%(jobs)s::text[], %(attempts)s::integer[], %(ranks)s::integer[], %(streams)s::text[], %(starts)s::bigint[])
  with ordinality as s(job_id, attempt, rank, stream, start, n)
cross join lateral (
  select "offset", length, at from log_chunks
  where job_id = s.job_id and attempt = s.attempt and rank = s.rank and stream = s.stream
    and "offset" >= s.start - %(longest)s and "offset" + length > s.start
  order by "offset" limit %(limit)s
) c
order by s.n, c."offset";

-- name: find_log_ends
-- Where the last chunk of each stream ends that came before a time, or at it; from the stream's end backwards, because
-- most readers ask for what came lately.
select s.n, (
  select "offset" + length from log_chunks
  where job_id = s.job_id and attempt = s.attempt and rank = s.rank and stream = s.stream
    and (at < %(at)s::timestamptz or at = %(at)s::timestamptz and %(included)s::boolean)
  order by "offset" desc limit 1
) as "end"
from unnest(%(jobs)s::text[], %(attempts)s::integer[], %(ranks)s::integer[], %(streams)s::text[])
  with ordinality as s(job_id, attempt, rank, stream, n)
order by s.n;

-- name: read_log_spans
-- The chunks that reach into spans of streams, each with the number of its span.
select s.n, c."offset", c.data, c.at
from unnest(%(jobs)s::text[], %(attempts)s::integer[], %(ranks)s::integer[], %(streams)s::text[], %(starts)s::bigint[],
    %(ends)s::bigint[]) with ordinality as s(job_id, attempt, rank, stream, low, high, n)
cross join lateral (
  select "offset", data, at from log_chunks
  where job_id = s.job_id and attempt = s.attempt and rank = s.rank and stream = s.stream
    and "offset" >= s.low - %(longest)s and "offset" < s.high and "offset" + length > s.low
  order by "offset"
) c
order by s.n, c."offset";

-- name: prune_chunks
delete from log_chunks where job_id = any(%(ids)s);
