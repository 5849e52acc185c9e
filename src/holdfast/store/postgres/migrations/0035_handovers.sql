-- The queue is a table of its own, and jobs that a host has just taken are rows of handovers until the host's next sync.
--
-- A job that ends before its host speaks again was written twice, with a task and an attempt between: eight row versions
-- for a program that ran a millisecond. Now its place in the queue is deleted when a host takes it, and its own row is
-- written when it has ended (HANDOVER-1 … HANDOVER-4).

-- No job is queued or claimed by a server that still runs until the places are written.
lock table jobs in access exclusive mode;

-- A server of an older version would queue jobs that have no place, and take jobs that others were handed. Its statements
-- name the column by its old name, and its submissions leave it to a default, so they fail until it is replaced.
alter table jobs rename column ord to place;
alter table jobs alter column place drop default;

-- One row for each queued job that no host has been handed. To delete it is to claim the job.
create table ready_jobs (
  job_id   text primary key,
  queue    text not null,
  priority smallint not null,
  place    bigint not null,
  epoch    bigint not null,
  since    timestamptz not null
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
insert into ready_jobs select id, queue, priority, place, epoch, queued_at from jobs where state = 'queued';
-- Exactly the ORDER BY of admission: the depth of a queue then costs nothing.
create index ready_jobs_order on ready_jobs (queue, priority desc, place);
analyze ready_jobs;
drop index jobs_queued;

-- Jobs of one task and their first attempt, reserved on a host and offered to it by the answer to its sync, in one row.
-- Their own rows say queued until the host speaks again, or another transaction asks for them (`unpack_handovers`).
-- n: the batch of their events.
create table handovers (
  n            bigint not null,
  host_id      text not null,
  incarnation  text not null,
  host         text not null,
  at           timestamptz not null,
  cpu_slots    bigint not null, -- of all of them together, as memory_bytes
  memory_bytes bigint not null,
  job_ids      text[] not null,
  ttls         double precision[] not null,
  queues       text[] not null,
  primary key (host_id, n),
  constraint handovers_alike check (
    cardinality(job_ids) >= 1 and cardinality(ttls) = cardinality(job_ids) and cardinality(queues) = cardinality(job_ids))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);

-- The first statement of a transaction that must see all jobs in their own rows (HANDOVER-3).
create function look_for_handovers() returns void language plpgsql as $$
begin
  if exists (select from handovers) then
    raise exception 'jobs are handed over' using errcode = 'object_not_in_prerequisite_state';
  end if;
end
$$;

-- Write what `take_jobs` writes for jobs that were handed over: to these hosts, or to any where `hosts` is null.
create function unpack_handovers(hosts text[]) returns void language sql as $$
  with gone as (
    delete from handovers h where hosts is null or h.host_id = any(hosts) returning h.*
  ), handed as (
    select g.n, g.host_id, g.incarnation, g.host, g.at, e.job_id, e.ttl
    from gone g cross join lateral unnest(g.job_ids, g.ttls) as e(job_id, ttl)
  ), locked as materialized (
    select j.id from jobs j where j.id = any(array(select job_id from handed)) and j.epoch = 0
    order by j.id for no key update
  ), moved as (
    update jobs j set state = 'reserved', epoch = 1, attempts = 1, reason = 'reserved on ' || h.host || ', which took it',
           revision = j.revision + 1
    from handed h where j.id = any(array(select id from locked)) and j.id = h.job_id
    returning j.id, j.queue, j.gpus, j.cpu_slots, j.memory_bytes, j.retries_charged, j.reason, h.*
  ), placed as (
    insert into tasks (job_id, rank, epoch, attempt, state, queue, gpus, cpu_slots, memory_bytes, host_id, incarnation,
                       lease_ttl_seconds, barrier, offered_at, lease_until)
    select m.id, 0, 1, 1, 'reserved', m.queue, m.gpus, m.cpu_slots, m.memory_bytes, m.host_id, m.incarnation, m.ttl, true,
           m.at, m.at + m.ttl * interval '1 second'
    from moved m
  )
  insert into attempts (job_id, number, epoch, state, retry_count, reason, host, host_ids, road, reserved_at, taken_batch)
  select m.id, 1, 1, 'reserved', m.retries_charged, m.reason, m.host, array[m.host_id], 'host', m.at, m.n from moved m
$$;
