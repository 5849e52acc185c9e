-- The ledger by the day: milliseconds × devices of each subject by name, kept for ever. Its one writer is `add_ledger_rows`.

create table ledger_days (
  subject bigint not null,
  at      timestamptz not null,
  name    text not null,
  ms      bigint not null check (ms >= 0),
  primary key (subject, name, at)
) with (fillfactor = 85);
create index ledger_days_at on ledger_days (at);

-- name: fold_ledger_days
-- After fold_ledger_subjects: the days of jobs are added to those of their subjects without a job.
with old as (
  delete from ledger_days d using ledger_subjects s
  where s.id = d.subject and s.settled and s.job_id <> '' and d.at < %(before)s
  returning d.at, d.name, d.ms, s.unit, s.host_id, s.pool, s.project, s.owner, s.queue, s.labels
)
insert into ledger_days (subject, at, name, ms)
select f.id, o.at, o.name, sum(o.ms)::bigint
from old o join ledger_subjects f on f.job_id = '' and f.attempt = 0 and f.host_id = o.host_id and f.unit = o.unit and f.pool = o.pool
  and f.project = o.project and f.owner = o.owner and f.queue = o.queue and md5(f.labels::text) = md5(o.labels::text)
group by 1, 2, 3 order by 1, 3, 2
on conflict (subject, name, at) do update set ms = ledger_days.ms + excluded.ms;
