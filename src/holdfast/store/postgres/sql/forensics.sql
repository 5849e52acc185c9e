-- What was gathered of a rank before it was ended. That of an earlier life of a rank stays beside its successor's.

create table forensics (
  job_id   text not null,
  attempt  integer not null,
  rank     integer not null,
  epoch    bigint not null,
  reason   text not null,
  seconds  double precision not null, -- that it took
  sections jsonb not null,
  primary key (job_id, attempt, rank, epoch)
);

-- name: put_forensics
-- One account of each life of a rank, told apart by its epoch; a repeated call writes the same.
insert into forensics (job_id, attempt, rank, epoch, reason, seconds, sections)
values (%(job_id)s, %(attempt)s, %(rank)s, %(epoch)s, %(reason)s, %(seconds)s, %(sections)s::jsonb)
on conflict (job_id, attempt, rank, epoch) do update set
  reason = excluded.reason, seconds = excluded.seconds, sections = excluded.sections;

-- name: read_forensics
select attempt, job_id, rank, epoch, reason, seconds, sections from forensics
where job_id = %(job_id)s and (%(attempt)s::integer is null or attempt = %(attempt)s)
order by attempt, rank, epoch;

-- name: prune_forensics
delete from forensics where job_id = any(%(ids)s);
