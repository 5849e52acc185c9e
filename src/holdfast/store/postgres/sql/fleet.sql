-- Pools, the machines they rent, and the snapshot of a cycle.

-- name: read_installation
select installation from cluster;

-- name: lock_pool
select name, spec, paused_at, paused_reason, deleted_at, blocked, cycled_at, quiet_until, quiet_reason, created_at
from pools where name = %(name)s for update;

-- name: read_pools
select name, spec, paused_at, paused_reason, deleted_at, blocked, cycled_at, quiet_until, quiet_reason, created_at
from pools where %(names)s::text[] is null or name = any(%(names)s) order by name;

-- name: put_pool
insert into pools (name, spec, created_at) values (%(name)s, %(spec)s::jsonb, %(now)s)
on conflict (name) do update set spec = excluded.spec;

-- name: pause_pool
update pools set paused_at = coalesce(paused_at, %(now)s), paused_reason = %(reason)s where name = %(name)s;

-- name: quiet_pool
update pools set quiet_until = greatest(quiet_until, %(now)s::timestamptz + %(seconds)s * interval '1 second'), quiet_reason = %(reason)s
where name = %(name)s;

-- name: resume_pool
update pools set paused_at = null, paused_reason = '' where name = %(name)s;

-- name: delete_pool
update pools set deleted_at = coalesce(deleted_at, %(now)s) where name = %(name)s;

-- name: pool_in_use
select exists (
  select from instances i join hosts h on h.id = i.host_id
  where i.pool = %(name)s and (i.state <> 'gone' or h.state <> 'terminated'));

-- name: forget_pool
delete from pools where name = %(name)s;

-- name: forget_pool_cycles
delete from pool_cycles where pool = %(name)s;

-- name: forget_pool_outcomes
delete from pool_outcomes where pool = %(name)s;

-- name: forget_pool_troubles
delete from offer_troubles where pool = %(name)s;

-- name: read_money
-- From the question on, of machines that were made: one that no provider ever named or listed costs nothing. Must equal
-- `moves.fleet.cost_since`.
with clock as materialized (
  select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
), day as materialized (
  select now, date_trunc('day', now, 'UTC') as midnight from clock
)
select i.pool,
       coalesce(sum(i.usd_per_hour) filter (where i.gone_at is null), 0)::double precision as usd_per_hour,
       sum(greatest(0, extract(epoch from least(coalesce(i.gone_at, d.now), d.now) - greatest(i.asked_at, d.midnight)))
           * i.usd_per_hour / 3600)::double precision as spent_today_usd
from instances i cross join day d
where i.asked_at is not null and i.made_at is not null and (i.gone_at is null or i.gone_at > d.midnight)
group by i.pool;

-- name: record_cycle
insert into pool_cycles (pool, at, summary) values (%(pool)s, %(at)s, %(summary)s::jsonb);

-- name: mark_cycle
update pools set blocked = %(blocked)s, cycled_at = %(at)s where name = %(pool)s;

-- name: trim_cycles
delete from pool_cycles where pool = %(pool)s and id <= (
  select id from pool_cycles where pool = %(pool)s order by id desc offset %(keep)s limit 1);

-- name: list_cycles
select summary from pool_cycles where pool = %(pool)s order by id desc limit %(limit)s;

-- name: count_open
-- Under the pool's lock, so that of two cycles that saw the same pool one spawns.
select count(*) from instances where pool = %(pool)s and state <> 'gone';

-- name: insert_intents
-- The heartbeat's row is the host's lock from its first moment; its incarnation is empty until the agent calls.
with given as (
  select * from unnest(%(ids)s::text[], %(names)s::text[]) as g(id, name)
), hosted as (
  insert into hosts (id, name, pool, state, reason, queues, labels, cpu_slots, memory_bytes, registered_at, state_at)
  select g.id, g.name, %(pool)s, 'spawning', %(reason)s, %(queues)s, %(labels)s::jsonb, 0, 0, %(now)s, %(now)s from given g
), beating as (
  insert into heartbeats (host_id, incarnation, heartbeat_at) select g.id, '', %(now)s from given g
)
insert into instances (host_id, pool, offer, usd_per_hour, state, reason, intended_at)
select g.id, %(pool)s, %(offer)s, %(usd_per_hour)s, 'intended', %(reason)s, %(now)s from given g
returning host_id;

-- name: lock_instance
-- After the host's own lock.
select i.host_id, h.name, i.pool, i.offer, i.state, h.state as host, i.ref, i.fault, i.active_at is not null as served,
       i.intended_at
from instances i join hosts h on h.id = i.host_id
where i.host_id = %(id)s
for update of i;

-- name: ask_instance
update instances set state = %(state)s, asked_at = %(now)s where host_id = %(id)s;

-- name: insert_host_token
insert into tokens (id, role, name, secret_hash, created_at, expires_at, host_id)
values (%(token_id)s, 'join', %(name)s, %(secret_hash)s, %(now)s, %(now)s::timestamptz + %(seconds)s * interval '1 second', %(id)s);

-- name: make_instance
update instances set state = %(state)s, ref = %(ref)s, made_at = coalesce(made_at, %(now)s), seen_at = %(now)s,
       usd_per_hour = coalesce(%(usd_per_hour)s, usd_per_hour), missing_since = null, missing_times = 0
where host_id = %(id)s;

-- name: end_instance
-- Also from `move_host`: a host that an operator terminates, or whose agent leaves, gives its machine back.
update instances set
  state = case when state = 'intended' then 'gone' else 'ending' end,
  gone_at = case when state = 'intended' then %(now)s::timestamptz end, reason = %(reason)s
where host_id = %(id)s and state in ('intended', 'asked', 'made')
returning state;

-- name: lose_instance
update instances set state = 'gone', gone_at = %(now)s, reason = %(reason)s where host_id = %(id)s;

-- name: note_end_asked
update instances set end_asked_at = %(now)s where host_id = %(id)s;

-- name: note_seen
-- Most listings show what the one before did, and write nothing.
update instances set seen_at = %(now)s, missing_since = null, missing_times = 0
where host_id = any(%(ids)s) and state <> 'gone' and (
  state <> 'made' or missing_since is not null or seen_at is null
  or seen_at <= %(now)s::timestamptz - %(seconds)s * interval '1 second');

-- name: note_missing
update instances set missing_since = coalesce(missing_since, %(now)s), missing_times = missing_times + 1
where host_id = any(%(ids)s) and state <> 'gone';

-- name: note_words
update instances i set said = g.said from unnest(%(ids)s::text[], %(said)s::text[]) as g(id, said)
where i.host_id = g.id and i.state <> 'gone' and i.said <> g.said;

-- name: note_lost
update instances i set lost = g.lost from unnest(%(ids)s::text[], %(lost)s::text[]) as g(id, lost)
where i.host_id = g.id and i.state <> 'gone' and i.lost <> g.lost;

-- name: find_silent
select i.host_id, i.pool from instances i join heartbeats b on b.host_id = i.host_id
where i.state = 'made' and b.incarnation <> ''
  and b.heartbeat_at < coalesce(%(now)s::timestamptz, clock_timestamp()) - %(seconds)s * interval '1 second'
  and exists (select from tasks t where t.host_id = i.host_id and t.state in ('reserved', 'running', 'preempting'))
order by i.host_id;

-- name: note_active
update instances set active_at = coalesce(active_at, %(now)s) where host_id = %(id)s;

-- name: note_fault
update instances set fault = %(fault)s where host_id = %(id)s;

-- name: insert_outcome
insert into pool_outcomes (pool, offer, at, fault, reason) values (%(pool)s, %(offer)s, %(now)s, %(fault)s, %(reason)s);

-- name: note_trouble
insert into offer_troubles (pool, offer, refusals, at, reason) values (%(pool)s, %(offer)s, 1, %(now)s, %(reason)s)
on conflict (pool, offer) do update set refusals = offer_troubles.refusals + 1, at = excluded.at, reason = excluded.reason;

-- name: clear_trouble
delete from offer_troubles where pool = %(pool)s and offer = %(offer)s;

-- name: count_leases
select count(*) from tasks where host_id = %(id)s and state in ('reserved', 'running', 'preempting');

-- name: read_instances
select i.host_id, h.name, i.pool, i.offer, i.usd_per_hour, i.state, h.state as host_state, i.ref, i.reason, i.fault, i.said,
       i.intended_at, i.asked_at, i.made_at, i.end_asked_at, i.gone_at, i.seen_at, i.missing_since, i.missing_times,
       case when b.incarnation <> '' then b.heartbeat_at end as heartbeat_at
from instances i join hosts h on h.id = i.host_id join heartbeats b on b.host_id = i.host_id
where (%(ids)s::text[] is null or i.host_id = any(%(ids)s)) and (%(pool)s::text is null or i.pool = %(pool)s)
  and (%(states)s::text[] is null or i.state = any(%(states)s))
  and (%(include_gone)s or i.state <> 'gone' or h.state <> 'terminated')
order by i.intended_at, i.host_id;

-- name: begin_snapshot
select coalesce(%(now)s::timestamptz, clock_timestamp()) as now;

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
       date_part('epoch', %(now)s::timestamptz - g.at) as telemetry_seconds
from instances i join hosts h on h.id = i.host_id join heartbeats b on b.host_id = i.host_id
left join busy u on u.host_id = i.host_id
left join host_telemetry g on g.host_id = i.host_id
where h.state <> 'terminated' or i.state <> 'gone'
order by i.pool, i.host_id;

-- name: snapshot_checks
-- What hosts that are not active yet show of themselves, and the last verdict of this incarnation's checks.
select distinct on (h.id) h.id as host_id, h.cpu_slots, h.memory_bytes, h.gpus, c.verdict, c.message
from instances i join hosts h on h.id = i.host_id join heartbeats b on b.host_id = i.host_id
left join host_checks c on c.host_id = h.id and c.kind = 'preflight' and c.incarnation = b.incarnation
where h.state = 'preflight'
order by h.id, c.at desc;

-- name: snapshot_waiting
-- Queued jobs by shape, so that a hundred thousand alike are one row; grouped before anything is joined or filled in, because
-- that would be done for each of them. Those of paused queues start on no host.
with shapes as materialized (
  select j.queue, j.project, j.tasks, j.gpus, j.cpu_slots, j.memory_bytes, j.spec->'host_labels' as host_labels,
         count(*) as jobs, min(j.queued_at) as queued_at
  from jobs j where j.state = 'queued'
  group by j.queue, j.project, j.tasks, j.gpus, j.cpu_slots, j.memory_bytes, j.spec->'host_labels'
)
select s.queue, s.project, s.jobs, s.tasks, s.gpus, s.cpu_slots, s.memory_bytes,
       coalesce(s.host_labels, '{}') as host_labels,
       greatest(0, date_part('epoch', %(now)s::timestamptz - s.queued_at)) as oldest_seconds
from shapes s join queues q on q.name = s.queue
where q.paused_at is null
order by s.queue, s.project, s.tasks, s.gpus, s.cpu_slots, s.memory_bytes, 8;

-- name: snapshot_members
-- Members of supervised jobs that wait for another host: each is one task.
select t.queue, count(*) as jobs, t.gpus, t.cpu_slots, t.memory_bytes, coalesce(j.spec->'host_labels', '{}') as host_labels,
       greatest(0, extract(epoch from %(now)s::timestamptz - min(t.ready_at)))::double precision as oldest_seconds
from tasks t join jobs j on j.id = t.job_id
where t.state = 'blocked' and t.ready_at <= %(now)s and j.state in ('reserved', 'running')
group by t.queue, t.gpus, t.cpu_slots, t.memory_bytes, coalesce(j.spec->'host_labels', '{}')
order by t.queue, t.gpus, t.cpu_slots, t.memory_bytes, 6;

-- name: snapshot_outcomes
select pool, offer, fault, reason, greatest(0, extract(epoch from %(now)s::timestamptz - at))::double precision as age_seconds
from pool_outcomes where at > %(now)s::timestamptz - %(seconds)s * interval '1 second'
order by id desc;

-- name: seen_memory
-- What the last host of each offer showed: an offer may not say its memory.
select distinct on (i.pool, i.offer) i.pool, i.offer, h.memory_bytes
from instances i join hosts h on h.id = i.host_id where h.memory_bytes > 0
order by i.pool, i.offer, i.intended_at desc;

-- name: snapshot_troubles
-- At any age, because the back-off counts from it.
select pool, offer, refusals, reason, greatest(0, extract(epoch from %(now)s::timestamptz - at))::double precision as age_seconds
from offer_troubles order by pool, offer;

-- name: prune_instances
with old as (
  select i.host_id from instances i join hosts h on h.id = i.host_id
  where i.state = 'gone' and i.gone_at < %(before)s and h.state = 'terminated'
    and not exists (select from tasks t where t.host_id = i.host_id)
  order by i.gone_at limit %(limit)s
), beats as (
  delete from heartbeats b using old where b.host_id = old.host_id
), counted as (
  delete from host_calls c using old where c.host_id = old.host_id
), tokened as (
  delete from tokens t using old where t.host_id = old.host_id
), hosted as (
  delete from hosts h using old where h.id = old.host_id
)
delete from instances i using old where i.host_id = old.host_id;

-- name: prune_outcomes
delete from pool_outcomes where at < %(before)s;

-- name: read_orchestrator_status
select queued, spawning, active, terminating, total, health from orchestrator_status;

-- name: read_workers_health
select host, heartbeat_age, task, vram_used, vram_total, vram_age, verdict from active_workers_health order by host;

-- name: read_worker_performance
select host, done, failed, success_rate, mean_seconds, uptime from worker_performance order by host;
