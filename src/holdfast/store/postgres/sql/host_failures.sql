-- Tasks that failed by themselves, as their agents count them: an index over attempts would cost the end of every job.

create table host_failures (
  host_id text not null,
  job_id  text not null,
  attempt integer not null,
  at      timestamptz not null,
  primary key (host_id, job_id, attempt)
);
create index host_failures_at on host_failures (at);

-- name: note_failures
insert into host_failures (host_id, job_id, attempt, at)
select %(host_id)s, g.job_id, g.attempt, %(at)s
from unnest(%(jobs)s::text[], %(attempts)s::integer[]) as g(job_id, attempt)
on conflict (host_id, job_id, attempt) do nothing;

-- name: prune_failures
delete from host_failures where at < %(before)s;
