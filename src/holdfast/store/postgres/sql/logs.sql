-- name: find_attempt_on_host
-- The sender must be the host that ran this rank under this epoch, as its first host or as a replacement.
select number from attempts where job_id = %(job_id)s and epoch = %(epoch)s and host_ids[%(rank)s::integer + 1] = %(host_id)s
union all
select attempt from replacements
where job_id = %(job_id)s and epoch = %(epoch)s and rank = %(rank)s and host_id = %(host_id)s;

-- name: lock_streams
-- Makes the rows and locks them, so that two senders of one stream take turns; in one order, so that they cannot
-- deadlock. No row: this host did not run the rank under this epoch. A rank that was replaced here has two epochs and
-- one stream. silent: all that is told of the stream is that it has ended without a byte; its row is made so.
with given as (
  select * from unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[], %(streams)s::text[], %(silent)s::boolean[])
    as g(job_id, rank, epoch, stream, silent)
), ours as materialized (
  select g.job_id, a.number as attempt, g.rank, g.epoch, g.stream, g.silent
  from given g join attempts a on a.job_id = g.job_id and a.epoch = g.epoch and a.host_ids[g.rank + 1] = %(host_id)s
  union
  select g.job_id, r.attempt, g.rank, g.epoch, g.stream, false
  from given g join replacements r
    on r.job_id = g.job_id and r.epoch = g.epoch and r.rank = g.rank and r.host_id = %(host_id)s
), held as (
  insert into log_streams (job_id, attempt, rank, stream, ended)
  select o.job_id, o.attempt, o.rank, o.stream, bool_and(o.silent and not exists (
    select from replacements r where r.job_id = o.job_id and r.rank = o.rank and r.attempt = o.attempt))
  from ours o group by 1, 2, 3, 4 order by 1, 2, 3, 4
  on conflict (job_id, attempt, rank, stream) do update set ended = log_streams.ended
  returning job_id, attempt, rank, stream, size, ended
)
select o.job_id, o.attempt, o.rank, o.epoch, o.stream, h.size, h.ended, exists (
  select from replacements r where r.job_id = o.job_id and r.rank = o.rank and r.attempt = o.attempt) as replaced
from ours o join held h using (job_id, attempt, rank, stream);

-- name: read_log_bases
-- Where in this stream each epoch's bytes of a replaced rank begin (LOG-3). Under the stream's lock.
select epoch, number, (log_base->>%(stream)s::text)::bigint as base from replacements
where job_id = %(job_id)s and rank = %(rank)s and attempt = %(attempt)s
order by number;

-- name: write_log_base
update replacements set log_base = log_base || jsonb_build_object(%(stream)s::text, %(base)s::bigint)
where job_id = %(job_id)s and rank = %(rank)s and epoch = %(epoch)s;

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

-- name: insert_call_outputs
-- Where outputs of calls begin; an append that is repeated writes the same again.
insert into call_outputs (job_id, attempt, rank, stream, start, "end", set_id, call_attempt, first, last)
select %(job_id)s, %(attempt)s, %(rank)s, %(stream)s, x.start, x."end", x.set_id, x.attempt, x.first, x.last
from jsonb_to_recordset(%(spans)s::jsonb)
  as x(start bigint, "end" bigint, set_id text, attempt integer, first integer, last integer)
on conflict do nothing;

-- name: drop_call_outputs
-- With the chunks between head and tail.
delete from call_outputs
where job_id = %(job_id)s and attempt = %(attempt)s and rank = %(rank)s and stream = %(stream)s
  and start >= %(head)s and start < %(tail_start)s and "end" <= %(tail_start)s;

-- name: write_stream
update log_streams set size = %(size)s, kept = kept + %(change)s, ended = (ended or %(ended)s) and not %(goes_on)s
where job_id = %(job_id)s and attempt = %(attempt)s and rank = %(rank)s and stream = %(stream)s;

-- name: list_streams
select job_id, attempt, rank, stream, size, kept, ended from log_streams
where job_id = %(job_id)s and (%(attempt)s::integer is null or attempt = %(attempt)s)
order by attempt, rank, stream;

-- name: read_log
-- Chunks that begin before the window's end; the caller trims the first and the last.
select "offset", data, at from log_chunks
where job_id = %(job_id)s and attempt = %(attempt)s and rank = %(rank)s and stream = %(stream)s
  and "offset" + length > %(offset)s
order by "offset"
limit %(limit)s;

-- name: list_log_lives
select a.epoch, a.host_ids[%(rank)s::integer + 1] as host_id, 0::bigint as base, 0 as number from attempts a
where a.job_id = %(job_id)s and a.number = %(attempt)s and a.host_ids[%(rank)s::integer + 1] is not null
union all
select r.epoch, r.host_id, (r.log_base->>%(stream)s::text)::bigint, r.number from replacements r
where r.job_id = %(job_id)s and r.attempt = %(attempt)s and r.rank = %(rank)s
order by number;

-- name: ask_log_read
with old as (
  delete from log_reads where asked_at < coalesce(%(now)s::timestamptz, clock_timestamp()) - %(seconds)s * interval '1 second'
)
insert into log_reads (id, host_id, "order", asked_at)
values (%(id)s, %(host_id)s, %(order)s::jsonb, coalesce(%(now)s::timestamptz, clock_timestamp()));

-- name: list_log_reads
select "order" from log_reads where host_id = %(host_id)s and at is null order by asked_at, id limit 16;

-- name: answer_log_read
update log_reads set at = %(at)s, data = %(data)s, reason = %(reason)s
where id = %(id)s and host_id = %(host_id)s and at is null;

-- name: take_log_read
delete from log_reads where id = %(id)s and (at is not null or %(give_up)s::boolean)
returning id, at, data, reason;

-- name: put_forensics
-- One account of each life of a rank, told apart by its epoch; a repeated call writes the same.
insert into forensics (job_id, attempt, rank, epoch, reason, seconds, sections, at)
values (%(job_id)s, %(attempt)s, %(rank)s, %(epoch)s, %(reason)s, %(seconds)s, %(sections)s::jsonb,
        coalesce(%(now)s, clock_timestamp()))
on conflict (job_id, attempt, rank, epoch) do update set
  reason = excluded.reason, seconds = excluded.seconds, sections = excluded.sections;

-- name: read_forensics
select attempt, job_id, rank, epoch, reason, seconds, sections from forensics
where job_id = %(job_id)s and (%(attempt)s::integer is null or attempt = %(attempt)s)
order by attempt, rank, epoch;
