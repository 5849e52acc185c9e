-- How far each lease of an unfinished job is counted (`core.ledger.split_lease.Account`).

create table ledger_accounts (
  job_id  text not null,
  rank    integer not null,
  epoch   bigint not null,
  attempt integer not null,
  host_id text not null,
  gpus    integer not null,
  cpu_slots integer not null,
  account jsonb not null,
  primary key (job_id, rank, epoch)
) with (fillfactor = 70);

-- name: read_ledger_accounts
-- Those of jobs with a lease now, and of jobs that ended since.
select a.job_id, a.rank, a.epoch, a.attempt, a.host_id, a.gpus, a.cpu_slots, a.account, j.ended_at as over_at, j.id is null as gone
from ledger_accounts a left join jobs j on j.id = a.job_id
where a.job_id = any(%(jobs)s) or j.id is null or j.ended_at is not null;

-- name: put_ledger_accounts
insert into ledger_accounts (job_id, rank, epoch, attempt, host_id, gpus, cpu_slots, account)
select x.job_id, x.rank, x.epoch, x.attempt, x.host_id, x.gpus, x.cpu_slots, x.account
from jsonb_to_recordset(%(rows)s::jsonb) as x(job_id text, rank integer, epoch bigint, attempt integer, host_id text, gpus integer,
  cpu_slots integer, account jsonb)
on conflict (job_id, rank, epoch) do update set account = excluded.account;

-- name: close_ledger_accounts
delete from ledger_accounts where job_id = any(%(jobs)s);
