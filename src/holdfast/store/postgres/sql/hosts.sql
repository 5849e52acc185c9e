-- name: read_hosts
-- `busy_*` from live leases, in one grouped pass over the small tasks table for any number of hosts.
with busy as (
  select t.host_id, count(*) as running, sum(t.cpu_slots)::bigint as cpu_slots,
         sum(t.memory_bytes)::bigint as memory_bytes
  from tasks t where t.state in ('reserved', 'running', 'preempting') and t.host_id is not null
    and (%(ids)s::text[] is null or t.host_id = any(%(ids)s))
  group by t.host_id
), devices as (
  select t.host_id, array_agg(d order by d) as devices
  from tasks t cross join unnest(t.devices) d
  where t.state in ('reserved', 'running', 'preempting') and t.host_id is not null
    and (%(ids)s::text[] is null or t.host_id = any(%(ids)s))
  group by t.host_id
)
select h.id, h.name, h.pool, h.state, h.reason, b.incarnation, h.queues, h.labels, h.cpu_slots, h.memory_bytes, h.gpus,
       h.address, h.version, h.probe, h.memory_limits, h.faults, coalesce(u.cpu_slots, 0) as busy_cpu_slots,
       coalesce(u.memory_bytes, 0) as busy_memory_bytes, coalesce(d.devices, '{}') as busy_gpus,
       coalesce(u.running, 0) as running, h.registered_at, case when b.incarnation <> '' then b.heartbeat_at end as heartbeat_at,
       b.flagged_dead_at, h.drain_deadline, i.offer, i.usd_per_hour,
       case when h.state = 'spawning' then coalesce(i.said, '') else '' end as provider_says
from hosts h join heartbeats b on b.host_id = h.id
left join instances i on i.host_id = h.id
left join busy u on u.host_id = h.id
left join devices d on d.host_id = h.id
where (%(ids)s::text[] is null or h.id = any(%(ids)s))
  and (%(include_terminated)s or h.state <> 'terminated')
  and (not %(dead)s or b.flagged_dead_at is not null)
order by h.name, h.id;

-- name: find_host
-- By id, then by name: those still in use, then those that ended, the newest first.
select id, state = 'terminated' as ended from hosts where id = %(host)s or name = %(host)s
order by id = %(host)s desc, ended, registered_at desc, id limit 20;

-- name: lock_name
-- Of two hosts that take a name at the same time, the second one sees the first.
select pg_advisory_xact_lock(hashtextextended('host ' || %(name)s, 0));

-- name: read_namesakes
select h.id, h.name, extract(epoch from %(now)s::timestamptz - b.heartbeat_at)::double precision as silent_seconds
from hosts h join heartbeats b on b.host_id = h.id
where h.name = %(name)s and h.id <> %(id)s and h.state <> 'terminated' order by h.id;

-- name: forget_key
update hosts set key_hash = null where id = %(id)s;

-- name: end_key
update hosts set ended_key_hash = coalesce(key_hash, ended_key_hash), key_hash = null where id = %(id)s;

-- name: find_ended_host
select name from hosts where ended_key_hash = %(key_hash)s;

-- name: find_hosts_by_keys
select id, key_hash from hosts where key_hash = any(%(key_hashes)s::bytea[]);

-- name: host_sizes
select h.name, h.queues, h.labels, h.cpu_slots, h.memory_bytes, h.gpus, coalesce(p.name, '') as pool
from hosts h left join pools p on p.name = h.pool and p.deleted_at is null
where h.state not in ('terminated', 'spawning') order by h.id;

-- name: lock_host
select b.incarnation from heartbeats b where b.host_id = %(id)s for update;

-- name: read_host_state
select h.state, h.name, h.earlier_incarnations, h.faults, h.boot_id,
       extract(epoch from %(now)s::timestamptz - b.heartbeat_at)::double precision as silent_seconds
from hosts h left join heartbeats b on b.host_id = h.id where h.id = %(id)s;

-- name: put_host
-- On a re-registration the key stays unless a join token was exchanged again.
insert into hosts (id, name, key_hash, pool, state, reason, queues, labels, cpu_slots, memory_bytes, gpus, address, boot_id,
                   version, probe, memory_limits, faults, registered_at, earlier_incarnations, state_at)
values (%(id)s, %(name)s, %(key_hash)s, %(pool)s, %(state)s, %(reason)s, %(queues)s, %(labels)s::jsonb, %(cpu_slots)s,
        %(memory_bytes)s, %(gpus)s::jsonb, %(address)s, %(boot_id)s, %(version)s, %(probe)s, %(memory_limits)s, %(faults)s::jsonb, %(now)s,
        %(earlier)s, %(now)s)
on conflict (id) do update set
  name = excluded.name, key_hash = coalesce(excluded.key_hash, hosts.key_hash), pool = excluded.pool,
  state = excluded.state, reason = excluded.reason, queues = excluded.queues, labels = excluded.labels,
  cpu_slots = excluded.cpu_slots, memory_bytes = excluded.memory_bytes, gpus = excluded.gpus,
  address = excluded.address, boot_id = excluded.boot_id, version = excluded.version, probe = excluded.probe, memory_limits = excluded.memory_limits,
  faults = excluded.faults, registered_at = excluded.registered_at,
  earlier_incarnations = excluded.earlier_incarnations,
  state_at = case when hosts.state <> excluded.state or excluded.state = 'preflight' then excluded.state_at else hosts.state_at end;

-- name: put_faults
update hosts set faults = %(faults)s::jsonb where id = %(id)s;

-- name: put_heartbeat
insert into heartbeats (host_id, incarnation, heartbeat_at) values (%(id)s, %(incarnation)s, %(now)s)
on conflict (host_id) do update set
  incarnation = excluded.incarnation, heartbeat_at = excluded.heartbeat_at, flagged_dead_at = null;

-- name: move_host
update hosts set state = %(state)s, reason = %(reason)s,
       drain_deadline = case when %(state)s = 'draining' then %(deadline)s::timestamptz end, drain_cause = %(cause)s,
       state_at = case when state = %(state)s then state_at else %(now)s end
where id = %(id)s;

-- name: find_drain_deadlines
select id, drain_cause from hosts where state = 'draining' and drain_deadline <= %(now)s order by id;

-- name: clear_drain_deadline
update hosts set drain_deadline = null where id = %(id)s;

-- name: jobs_on_host
-- Jobs with a live task on the host; `incarnation` leaves out the tasks of the incarnation that just registered.
select distinct t.job_id from tasks t
where t.host_id = %(id)s and t.state in ('reserved', 'running', 'preempting')
  and (%(incarnation)s::text is null or t.incarnation <> %(incarnation)s)
order by t.job_id;

-- name: flag_dead_hosts
-- Once, because the guard reads the flag. Only hosts with live work are reported.
with silent as (
  select b.host_id from heartbeats b
  where b.flagged_dead_at is null and b.heartbeat_at < %(silent_since)s
    and exists (select from tasks t where t.host_id = b.host_id and t.state in ('reserved', 'running', 'preempting'))
  order by b.host_id
  for update of b
)
update heartbeats b set flagged_dead_at = %(now)s
from silent s where b.host_id = s.host_id and b.flagged_dead_at is null
returning b.host_id, b.heartbeat_at;

-- name: live_tasks_of_host
select t.job_id, t.rank, t.epoch, t.queue, j.spec
from tasks t join jobs j on j.id = t.job_id
where t.host_id = %(id)s and t.state in ('reserved', 'running', 'preempting')
order by t.job_id, t.rank;
