-- What became of calls of functions on each host, as long as the host is on record.

create table host_calls (
  host_id text primary key,
  done    bigint not null check (done >= 0),
  failed  bigint not null check (failed >= 0),
  seconds double precision not null
) with (fillfactor = 50);

-- name: count_host_calls
insert into host_calls (host_id, done, failed, seconds) values (%(host)s, %(done)s, %(failed)s, %(seconds)s)
on conflict (host_id) do update set done = host_calls.done + excluded.done, failed = host_calls.failed + excluded.failed,
  seconds = host_calls.seconds + excluded.seconds;
