-- How tasks ended on hosts, counted by the hour.

create table host_ends (
  host_id text not null,
  hour    timestamptz not null,
  passed  integer not null check (passed >= 0),
  failed  integer not null check (failed >= 0),
  primary key (host_id, hour)
);

-- name: note_ends
insert into host_ends (host_id, hour, passed, failed)
values (%(host_id)s, date_trunc('hour', %(at)s::timestamptz), %(passed)s, %(failed)s)
on conflict (host_id, hour) do update
set passed = host_ends.passed + excluded.passed, failed = host_ends.failed + excluded.failed;

-- name: prune_ends
delete from host_ends where hour < %(before)s;
