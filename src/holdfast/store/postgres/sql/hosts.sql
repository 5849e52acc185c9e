-- Hosts: machines that run tasks, as they registered, and how they are.

create table hosts (
  id                   text primary key,
  name                 text not null,
  key_hash             bytea, -- of the key that its agent shows; null: it has none yet, or none any more
  ended_key_hash       bytea, -- of a host that was ended: the key opens nothing, and its agent is told so
  pool                 text not null, -- '': no pool rents it
  state                text not null constraint hosts_state_check check (state in
    ('spawning', 'preflight', 'active', 'draining', 'terminated', 'quarantined', 'error')),
  state_at             timestamptz not null default clock_timestamp(), -- since when
  reason               text not null default '',
  drain_deadline       timestamptz, -- what still runs then is stopped
  drain_cause          text not null default 'host_drained' check (drain_cause in ('host_drained', 'scaled_down')),
  faults               jsonb not null default '[]', -- what a part of the host cannot do now, in its own words
  queues               text[] not null default '{}', -- empty: every queue
  labels               jsonb not null default '{}',
  caches               text[] not null default '{}', -- keys of the caches that are warm there: project/name
  cpu_slots            integer not null check (cpu_slots >= 0),
  memory_bytes         bigint not null check (memory_bytes >= 0),
  gpus                 jsonb not null default '[]',
  address              text not null default '',
  version              text not null default '', -- of its agent
  memory_limits        text not null default '', -- what enforces memory limits there
  probe                text not null default 'real' constraint hosts_probe_check check (probe in ('real', 'scripted')),
  boot_id              text not null default '', -- by which a clone of its disk is told from the machine itself
  -- LEASE-3: a registration that comes late, from an incarnation that is over, is no evidence that the present one is gone.
  earlier_incarnations text[] not null default '{}',
  registered_at        timestamptz not null,
  constraint hosts_deadline_while_draining check (drain_deadline is null or state = 'draining')
);
create unique index hosts_key on hosts (key_hash) where key_hash is not null;
create unique index hosts_ended_key on hosts (ended_key_hash) where ended_key_hash is not null;
create index hosts_name on hosts (name);

-- ---- Admission: from queued to reserved, and back when the reservation was not offered in time.

-- name: read_capacity
-- Busy comes from live leases, never from a host's own report. A silent host is given nothing, because its
-- reservations would only run out one after the other. Devices are looked for where there are some: hosts without
-- have the most tasks.
select h.id as host_id, h.name, b.incarnation, h.queues, h.labels, h.cpu_slots, h.memory_bytes, h.gpus, h.state, h.faults, h.caches,
       coalesce(u.cpu_slots, 0) as busy_cpu_slots, coalesce(u.memory_bytes, 0) as busy_memory_bytes,
       coalesce(case when h.gpus <> '[]' then (
         select array_agg(d) from tasks t cross join lateral unnest(t.devices) as x(d)
         where t.host_id = h.id and t.state in ('reserved', 'running', 'preempting')
       ) end, '{}') as busy_devices
from hosts h join heartbeats b on b.host_id = h.id
left join lateral (
  select sum(t.cpu_slots)::bigint as cpu_slots, sum(t.memory_bytes)::bigint as memory_bytes
  from tasks t where t.host_id = h.id and t.state in ('reserved', 'running', 'preempting')
) u on true
where h.state = 'active' and not h.faults @> '[{"part": "starts"}]' -- ASIDE-1
  and (%(ids)s::text[] is null or h.id = any(%(ids)s))
  and (%(silence)s::double precision is null
    or b.heartbeat_at >= coalesce(%(now)s::timestamptz, statement_timestamp()) - make_interval(secs => %(silence)s))
order by h.id;

-- ---- Syncs: thousands of hosts a call, one transaction, few statements, none of them per row.

-- part: room_of_takers
-- As read_capacity, of a few hosts, with kept plans. Each host's tasks are read once, one host after the other: such a
-- scan forgets the index entries of tasks that are gone, which a bitmap would read again and again until the next
-- vacuum.
select h.id as host_id, h.name, b.incarnation, h.queues, h.labels, h.cpu_slots, h.memory_bytes, h.gpus, h.faults, h.caches,
       coalesce(u.cpu_slots, 0)::bigint as busy_cpu_slots, coalesce(u.memory_bytes, 0)::bigint as busy_memory_bytes,
       coalesce(case when h.gpus <> '[]' then (
         select array_agg(d) from tasks t cross join lateral unnest(t.devices) as x(d)
         where t.host_id = h.id and t.state in ('reserved', 'running', 'preempting')
       ) end, '{}') as busy_devices
from hosts h join heartbeats b on b.host_id = any(%(ids)s::text[]) and b.host_id = h.id
cross join lateral (
  select sum(t.cpu_slots) filter (where t.state in ('reserved', 'running', 'preempting'))::bigint as cpu_slots,
         sum(t.memory_bytes) filter (where t.state in ('reserved', 'running', 'preempting'))::bigint as memory_bytes,
         coalesce(bool_or(t.state in ('failed', 'preempted')), false) as fallen
  from tasks t where t.host_id = h.id
) u
where h.id = any(%(ids)s::text[]) and h.state = 'active' and not h.faults @> '[{"part": "starts"}]' -- ASIDE-1
  and not u.fallen -- TAKE-3
order by h.id;

-- ---- Hosts: registration, states, drains.

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
  and (not %(trouble)s or h.state <> 'active' or b.flagged_dead_at is not null or h.faults <> '[]')
  and (not %(gpus)s or h.gpus <> '[]')
  and (%(part)s::text is null or position(lower(%(part)s) in lower(h.name)) > 0 or starts_with(h.id, lower(%(part)s)))
order by h.name, h.id
limit %(limit)s;

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

-- name: put_caches
update hosts h set caches = %(caches)s from heartbeats b
where h.id = %(id)s and b.host_id = h.id and b.incarnation = %(incarnation)s;

-- name: move_host
update hosts set state = %(state)s, reason = %(reason)s,
       drain_deadline = case when %(state)s = 'draining' then %(deadline)s::timestamptz end, drain_cause = %(cause)s,
       state_at = case when state = %(state)s then state_at else %(now)s end
where id = %(id)s;

-- name: add_host_reason
update hosts set reason = concat_ws('; ', nullif(reason, ''), %(words)s::text) where id = %(id)s;

-- name: find_drain_deadlines
select id, drain_cause from hosts where state = 'draining' and drain_deadline <= %(now)s order by id;

-- name: clear_drain_deadline
update hosts set drain_deadline = null where id = %(id)s;

-- ---- Health.

-- name: read_standings
-- A failure speaks against a host only where the job then succeeded without it (BLAME-1), and only since the host was
-- last let back (BLAME-3).
with past as (
  select host_id, count(*) filter (where kind = 'jobs')::integer as blames, max(ended_at) as let_back_at
  from host_asides group by host_id
), against as (
  select f.host_id, (array_agg(distinct f.job_id order by f.job_id))[1:%(most)s] as jobs
  from host_failures f left join past p using (host_id)
  where f.at > greatest(%(since)s::timestamptz, coalesce(p.let_back_at, '-infinity'::timestamptz))
    and exists (select from attempts a where a.job_id = f.job_id and a.number > f.attempt and a.outcome = 'succeeded'
      and not (f.host_id = any(a.host_ids)))
  group by f.host_id
), ended as (
  select host_id, sum(passed)::integer as passed, sum(failed)::integer as failed
  from host_ends where hour > %(since)s::timestamptz - interval '1 hour' group by host_id
), checked as (
  select host_id, (array_agg(verdict order by at desc))[1:5] as verdicts,
    (array_agg(message order by at desc))[1] as message
  from host_checks where at > %(since)s group by host_id
), pools_of_hosts as (
  select pool, count(*)::integer as pool_hosts, count(*) filter (where state = 'quarantined')::integer as pool_aside
  from hosts where state in ('active', 'quarantined') group by pool
), open as (
  select host_id, kind, extract(epoch from until - %(now)s::timestamptz)::double precision as left_seconds
  from host_asides where ended_at is null
)
select h.id as host_id, h.name, coalesce(g.jobs, '{}') as jobs, coalesce(e.passed, 0) as passed,
  coalesce(e.failed, 0) as failed, coalesce(c.verdicts, '{}') as verdicts, coalesce(c.message, '') as check_message,
  coalesce(p.blames, 0) as blames, coalesce(o.kind, '') as aside, coalesce(o.left_seconds, 0) as aside_left_seconds,
  h.pool, l.pool_hosts, l.pool_aside
from hosts h
join pools_of_hosts l on l.pool = h.pool
left join against g on g.host_id = h.id
left join ended e on e.host_id = h.id
left join checked c on c.host_id = h.id
left join past p on p.host_id = h.id
left join open o on o.host_id = h.id
where (h.state = 'active' and (g.jobs is not null or 'fail' = any(c.verdicts))) or (h.state = 'quarantined' and o.kind is not null)
order by h.id;

-- ---- The snapshot of a cycle.

-- name: snapshot_hosts
-- Leases in one grouped pass over the tasks table, which holds live jobs alone. A task is stuck that was told to stop and
-- outlived its grace and its pool's patience, while its agent lives to say so. `date_part` gives a float; `extract` would
-- compute every age as a numeric.
with busy as (
  select t.host_id, count(*) as leases,
         min(j.drain_since + coalesce((j.spec->>'grace_seconds')::double precision, %(grace)s) * interval '1 second')
           filter (where t.state = 'preempting') as due,
         min(t.job_id) filter (where t.state = 'preempting') as job_id
  from tasks t join jobs j on j.id = t.job_id
  where t.state in ('reserved', 'running', 'preempting') and t.host_id is not null
  group by t.host_id
)
select i.pool, h.id as host_id, h.name, h.state, i.state as instance, i.offer, i.usd_per_hour, i.ref,
       date_part('epoch', %(now)s::timestamptz - h.state_at) as state_seconds,
       date_part('epoch', %(now)s::timestamptz - i.intended_at) as intent_seconds,
       date_part('epoch', %(now)s::timestamptz - i.asked_at) as asked_seconds,
       date_part('epoch', %(now)s::timestamptz - i.seen_at) as seen_seconds,
       i.missing_times as misses,
       coalesce(date_part('epoch', %(now)s::timestamptz - i.missing_since), 0) as missing_seconds,
       case when b.incarnation <> '' then date_part('epoch', %(now)s::timestamptz - b.heartbeat_at) end as heartbeat_seconds,
       case when u.leases is null and i.active_at is not null
         then date_part('epoch', %(now)s::timestamptz - greatest(i.active_at, b.busy_at)) end as idle_seconds,
       coalesce(u.leases, 0) as leases, h.faults @> '[{"part": "starts"}]' as aside, u.job_id as stopping,
       date_part('epoch', %(now)s::timestamptz - u.due) as overdue_seconds,
       h.state = 'draining' and h.drain_cause = 'scaled_down' as draining_for_scale,
       case when i.state = 'gone' then i.reason else '' end as gone, i.said, i.lost,
       case when h.state = 'error' then h.reason else '' end as reason,
       case when h.state in ('spawning', 'preflight') then 'pending' else 'ok' end as preflight,
       date_part('epoch', %(now)s::timestamptz - g.at) as telemetry_seconds,
       date_part('epoch', %(now)s::timestamptz - s.ended_at) as outputs_seconds
from instances i join hosts h on h.id = i.host_id join heartbeats b on b.host_id = i.host_id
left join busy u on u.host_id = i.host_id
left join lateral (
  select min(a.ended_at) as ended_at from outputs o join attempts a on a.job_id = o.job_id and a.number = o.attempt
  where o.host_id = i.host_id and o.state = 'collecting'
) s on true
left join host_telemetry g on g.host_id = i.host_id
where h.state <> 'terminated' or i.state <> 'gone'
order by i.pool, i.host_id;

-- ---- Upkeep.

-- name: count_hosts
with busy as (
  select t.host_id, sum(t.cpu_slots) as cpu_slots, sum(cardinality(t.devices)) as gpus
  from tasks t where t.state in ('reserved', 'running', 'preempting') group by t.host_id
)
select h.state, b.flagged_dead_at is not null as dead, count(*) as hosts, sum(h.cpu_slots)::bigint as cpu_slots,
       coalesce(sum(u.cpu_slots), 0)::bigint as busy_cpu_slots, sum(jsonb_array_length(h.gpus))::bigint as gpus,
       coalesce(sum(u.gpus), 0)::bigint as busy_gpus
from hosts h join heartbeats b on b.host_id = h.id left join busy u on u.host_id = h.id
group by 1, 2 order by 1, 2;
