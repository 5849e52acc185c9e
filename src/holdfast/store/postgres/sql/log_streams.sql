-- Streams of output, one row for each of a rank's: how much there was, and how much is kept.

create table log_streams (
  job_id  text not null,
  attempt integer not null,
  rank    integer not null,
  stream  text not null,
  size    bigint not null default 0 check (size >= 0), -- bytes
  kept    bigint not null default 0 check (kept >= 0),
  ended   boolean not null default false,
  last_bytes bytea default '', -- the last 64 of `size`, for the bloom of what follows; null where they are not known
  primary key (job_id, attempt, rank, stream)
);

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
  returning job_id, attempt, rank, stream, size, ended, last_bytes
)
select o.job_id, o.attempt, o.rank, o.epoch, o.stream, h.size, h.ended, h.last_bytes, exists (
  select from replacements r where r.job_id = o.job_id and r.rank = o.rank and r.attempt = o.attempt) as replaced
from ours o join held h using (job_id, attempt, rank, stream);

-- name: write_stream
update log_streams set size = %(size)s, kept = kept + %(change)s, ended = (ended or %(ended)s) and not %(goes_on)s,
  last_bytes = %(last_bytes)s
where job_id = %(job_id)s and attempt = %(attempt)s and rank = %(rank)s and stream = %(stream)s;

-- name: list_streams
select job_id, attempt, rank, stream, size, kept, ended from log_streams
where job_id = %(job_id)s and (%(attempt)s::integer is null or attempt = %(attempt)s)
order by attempt, rank, stream;

-- name: list_searched_streams
-- In the order of the jobs; stdout before stderr.
select s.job_id, s.attempt, s.rank, s.stream, s.size, s.kept, s.ended
from unnest(%(ids)s::text[]) with ordinality as j(id, n)
join log_streams s on s.job_id = j.id
where s.size > 0 and (%(attempt)s::integer is null or s.attempt = %(attempt)s)
  and (%(rank)s::integer is null or s.rank = %(rank)s) and (%(stream)s::text is null or s.stream = %(stream)s)
order by j.n, s.attempt, s.rank, s.stream desc;

-- name: prune_streams
delete from log_streams where job_id = any(%(ids)s);
