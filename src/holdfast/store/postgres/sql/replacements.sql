-- Hosts that stood in for a rank of a supervised job, each under its epoch: they may still send log bytes, forensics and ends of it.

create table replacements (
  job_id   text not null,
  rank     integer not null check (rank >= 1),
  epoch    bigint not null check (epoch >= 1),
  attempt  integer not null check (attempt >= 1),
  number   integer not null check (number >= 1), -- among the rank's replacements in this attempt
  host_id  text not null,
  -- By stream, where its bytes begin in the rank's log, which goes on where its predecessor's ended (LOG-3).
  log_base jsonb not null default '{}',
  primary key (job_id, rank, epoch)
);

-- name: write_replacements
insert into replacements (job_id, rank, epoch, attempt, number, host_id)
select x.job_id, x.rank, x.epoch, x.attempt, x.number, x.host_id
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  job_id text, rank integer, epoch bigint, attempt integer, number integer, host_id text);

-- name: read_log_bases
-- Where in this stream each epoch's bytes of a replaced rank begin (LOG-3). Under the stream's lock.
select epoch, number, (log_base->>%(stream)s::text)::bigint as base from replacements
where job_id = %(job_id)s and rank = %(rank)s and attempt = %(attempt)s
order by number;

-- name: write_log_base
update replacements set log_base = log_base || jsonb_build_object(%(stream)s::text, %(base)s::bigint)
where job_id = %(job_id)s and rank = %(rank)s and epoch = %(epoch)s;

-- name: prune_replacements
delete from replacements where job_id = any(%(ids)s);
