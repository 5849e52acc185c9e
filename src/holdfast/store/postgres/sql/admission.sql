-- From queued to reserved, and back when the reservation was not offered in time.

-- name: read_queues
select q.name, q.settings, q.paused_at, q.paused_reason, q.hard, q.created_at from queues q order by q.name;

-- name: read_capacity
-- Busy comes from live leases, never from a host's own report. A silent host is given nothing, because its
-- reservations would only run out one after the other. Devices are looked for where there are some: hosts without
-- have the most tasks.
select h.id as host_id, h.name, b.incarnation, h.queues, h.labels, h.cpu_slots, h.memory_bytes, h.gpus, h.state, h.faults,
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

-- name: read_candidates
-- The top of each queue by exactly the index's order, then merged: the depth of the queues does not matter.
select {candidate:c}
from unnest(%(queues)s::text[]) as q(name)
cross join lateral (
  select j.* from jobs j
  where j.state = 'queued' and j.queue = q.name and j.id not in (select unnest(%(but)s::text[]))
  order by j.priority desc, j.place
  limit %(limit)s
) c
order by c.priority desc, c.place;

-- name: read_candidates_in_quota
-- As above, without the jobs that their projects' quotas forbid now: a project at its limit would fill the list with
-- jobs that cannot start, and hide other projects' jobs behind them.
select {candidate:c}
from unnest(%(queues)s::text[]) as q(name)
cross join lateral (
  select j.* from jobs j
  left join unnest(%(projects)s::text[], %(jobs_left)s::bigint[], %(gpus_left)s::bigint[]) as l(project, jobs, gpus)
    on l.project = j.project
  where j.state = 'queued' and j.queue = q.name and j.id not in (select unnest(%(but)s::text[]))
    and (l.jobs is null or l.jobs > 0) and (l.gpus is null or j.gpus = 0 or l.gpus >= j.gpus::bigint * j.tasks)
  order by j.priority desc, j.place
  limit %(limit)s
) c
order by c.priority desc, c.place;

-- name: read_candidates_in_share
-- The top of each project that is below its share, of each queue, as far as they fit into it: the jobs of other
-- projects ahead of them do not hide them. One look into an index for each queue and project.
select {candidate:c}
from unnest(%(queues)s::text[]) as q(name)
cross join unnest(%(projects)s::text[], %(gpus)s::bigint[], %(cpu_slots)s::bigint[]) as o(project, gpus, cpu_slots)
cross join lateral (
  select j.* from jobs j
  where j.state = 'queued' and j.project = o.project and j.queue = q.name and j.id not in (select unnest(%(but)s::text[]))
  order by j.priority desc, j.place
  limit %(limit)s
) c
where case when c.gpus > 0 then c.gpus::bigint * c.tasks <= o.gpus else c.cpu_slots::bigint * c.tasks <= o.cpu_slots end
order by c.priority desc, c.place;

-- name: read_revision
select settings_rev, settings, rules from cluster;

-- name: begin_admission
-- The revision, and whether any job can be admitted: one look into the partial index. Only then the queues, and,
-- where one of them has a limit, the count of live jobs of each: that scan of jobs_live passes over every job that
-- left it since the last vacuum, which under load takes longer than everything else. `limits`: the environment sets
-- one.
select c.settings_rev, c.settings, w.queued as anything_queued, w.blocked as anything_blocked, coalesce(%(now)s::timestamptz, clock_timestamp()) as now,
       case when w.queued then (
         select coalesce(jsonb_agg(jsonb_build_object(
           'name', q.name, 'settings', q.settings, 'paused', q.paused_at is not null, 'served', exists (
             select from hosts h where h.state = 'active' and (h.queues = '{}' or q.name = any(h.queues)))
           ) order by q.name), '[]') from queues q
       ) end as queues,
       case when w.queued and (
         %(limits)s::boolean or c.settings ? 'max_running' or exists (select from queues where settings ? 'max_running')
       ) then (
         select coalesce(jsonb_object_agg(l.queue, l.n), '{}') from (
           select j.queue, count(*) as n from jobs j
           where j.state in ('reserved', 'running', 'draining') group by j.queue
         ) l
       ) end as live,
       case when w.queued then (
         select min(j.priority) from jobs j where j.preemptible and j.state in ('reserved', 'running', 'draining')
       ) end as lowest_preemptible,
       case when w.queued then
         coalesce(c.settings->>'quota_jobs', c.settings->>'quota_gpus') is not null
         or exists (select from projects where coalesce(settings->>'quota_jobs', settings->>'quota_gpus') is not null)
       end as limited,
       case when w.queued then
         c.settings ?| array['share_gpus', 'share_cpu_slots']
         or exists (select from projects where settings ?| array['share_gpus', 'share_cpu_slots'])
       end as shared
from cluster c cross join (
  select b.blocked, b.blocked or (
    select j.place from jobs j where j.state = 'queued' order by j.queue, j.priority desc, j.place limit 1) is not null as queued
  from (select exists (select from tasks where state = 'blocked') as blocked) b
) w;

-- name: read_blocked
-- Members of supervised jobs that wait for another host and whose time has come, with the hosts to be used last for
-- each. A limited number per job, so that a job that waits for room does not hide the others.
select b.job_id, b.rank as member, j.epoch, j.queue, j.project, j.priority, 1 as tasks, b.gpus, b.cpu_slots, b.memory_bytes,
       j.barred_hosts, j.avoid_hosts, a.host_ids[b.rank + 1] as first_host, coalesce((
         select array_agg(distinct r.host_id order by r.host_id) from replacements r
         where r.job_id = b.job_id and r.rank = b.rank and r.attempt = b.attempt), '{}') as earlier_hosts,
       (j.spec->>'lease_ttl_seconds')::double precision as lease_ttl_seconds,
       replace(j.spec->>'time_limit_seconds', 'off', 'infinity')::double precision as time_limit_seconds,
       (j.spec->>'expected_seconds')::double precision as expected_seconds,
       case when j.spec ? 'executor' then '' when j.array_id is not null then 'array:' || j.array_id else coalesce(j.spec->>'name', '') end as kin,
       coalesce(j.spec->'host_labels', '{}') as host_labels,
       greatest(0, extract(epoch from %(now)s::timestamptz - b.ready_at))::double precision as waited_seconds
from (select distinct job_id from tasks where state = 'blocked') w
join jobs j on j.id = w.job_id and j.state in ('reserved', 'running')
cross join lateral (
  select t.* from tasks t where t.job_id = w.job_id and t.state = 'blocked' and t.ready_at <= %(now)s
  order by t.rank
  limit %(limit)s
) b
join attempts a on a.job_id = b.job_id and a.number = b.attempt
order by j.priority desc, j.place, b.rank;

-- name: read_member_hosts
select o.job_id, array_agg(distinct o.host_id order by o.host_id) as host_ids from tasks o
where o.job_id = any(%(ids)s) and o.state in ('reserved', 'running', 'preempting') and o.host_id is not null
group by o.job_id;

-- name: share_queues
-- Locked before hosts and jobs: a pause waits for reservations under way, and then sees them.
select q.name, q.paused_at is not null as paused from queues q
where q.name = any(%(names)s::text[])
order by q.name
for share;

-- name: look_for_quotas
select exists (select from cluster where coalesce(settings->>'quota_jobs', settings->>'quota_gpus') is not null)
    or exists (select from projects where coalesce(settings->>'quota_jobs', settings->>'quota_gpus') is not null) as limited;

-- name: lock_hosts
select host_id from heartbeats where host_id = any(%(ids)s) order by host_id for no key update;

-- name: reserve_jobs
-- The one way from queued to reserved: job, tasks, attempt and event of each placement, where the job is still queued under
-- the epoch that its plan saw, its queue is open and, for what hosts take, the settings are those that let them (`revision`).
-- The hosts are locked, and their room is as the plan found it. A queue that is being paused or changed, and a job that
-- another transaction holds, is left alone: locks of queues come before those of hosts, so a wait here could be for ever.
-- `granted`: where a host hears of it by the answer to its sync, its lease begins.
-- The events are rows of 500, so that few are read for the events of one job.
with batches as materialized (
  select k, nextval('event_batches_n_seq') as n from generate_series(0, (cardinality(%(jobs)s::text[]) - 1) / 500) as k
), given as (
  select * from unnest(%(jobs)s::text[], %(epochs)s::bigint[], %(tasks)s::integer[], %(ttls)s::double precision[], %(homes)s::text[],
                       %(names)s::text[], %(places)s::text[]) with ordinality
    as g(job_id, epoch, tasks, ttl, host_id, hosts, host_ids, n)
), held as (
  select * from unnest(%(hosts)s::text[], %(incarnations)s::text[]) with ordinality as x(host_id, incarnation, n)
), seats as (
  select x.n, x.first, x.first + x.count - 1 as last, h.host_id, h.incarnation, coalesce(nullif(x.devices, ''), '{}')::integer[] as devices
  from unnest(%(job_numbers)s::integer[], %(host_numbers)s::integer[], %(firsts)s::integer[], %(counts)s::integer[], %(devices)s::text[])
    as x(n, host, first, count, devices)
  join held h on h.n = x.host
), open as materialized (
  select q.name from queues q
  where q.name = any(%(queues)s::text[]) and q.paused_at is null
    and (%(revision)s::bigint is null or exists (select from cluster where settings_rev = %(revision)s))
  order by q.name
  for share skip locked
), locked as materialized (
  select j.id from jobs j join given g on g.job_id = j.id
  where j.id = any(%(jobs)s::text[]) and j.state = any(%(reserve_from)s) and j.epoch = g.epoch and j.tasks = g.tasks
    and j.queue in (select name from open)
  order by j.id
  for update of j skip locked
), moved as (
  update jobs j set state = 'reserved', epoch = j.epoch + 1, attempts = j.attempts + 1,
         reason = 'reserved on ' || g.hosts || %(said)s::text,
         barred_hosts = '{}', revision = j.revision + 1, started_at = null, step = null, total = null, beat_at = null, trigger_rank = null
  from given g where j.id = any(array(select id from locked)) and j.id = g.job_id
  returning j.id, j.tasks, j.epoch, j.attempts, j.retries_charged, j.queue, j.project, j.gpus, j.cpu_slots, j.memory_bytes,
            j.reason, g.n, g.ttl, g.host_id, g.hosts, g.host_ids, coalesce((j.spec->>'supervised')::boolean, false) as supervised
), placed as (
  insert into tasks (job_id, rank, epoch, attempt, state, queue, gpus, cpu_slots, memory_bytes, host_id, incarnation,
                     devices, lease_ttl_seconds, barrier, offered_at, lease_until)
  select m.id, generate_series(s.first, s.last), m.epoch, m.attempts, 'reserved', m.queue, m.gpus, m.cpu_slots, m.memory_bytes,
         s.host_id, s.incarnation, s.devices, m.ttl, m.tasks = 1 or (m.host_id is not null and not m.supervised),
         %(granted)s::timestamptz, %(granted)s::timestamptz + m.ttl * interval '1 second'
  from moved m join seats s on s.n = m.n
), chained as (
  insert into attempts (job_id, number, parent, epoch, state, retry_count, reason, host, host_ids, road, reserved_at, taken_batch)
  select m.id, m.attempts, nullif(m.attempts - 1, 0), m.epoch, 'reserved', m.retries_charged, m.reason, m.hosts,
         case when m.host_ids is null then array_fill(m.host_id, array[m.tasks])
              else array(select jsonb_array_elements_text(m.host_ids::jsonb)) end,
         %(road)s, %(now)s::timestamptz, b.n
  from moved m join batches b on b.k = (m.n - 1) / 500
), logged as (
  insert into event_batches (n, at, kind, ids, began_ids, job_ids, attempts, epochs, host_ids, queues, projects, messages)
    overriding system value
  select b.n, %(now)s::timestamptz, 'job.reserved', array_agg(m.event_id), array_agg(null::bigint), array_agg(m.id),
         array_agg(m.attempts), array_agg(m.epoch), array_agg(m.host_id), array_agg(m.queue), array_agg(m.project),
         array_agg(m.reason)
  from (select nextval('events_id_seq') as event_id, m.* from (select * from moved order by n) m) m
  join batches b on b.k = (m.n - 1) / 500
  group by b.n
)
-- ns: which of those given were written. secrets: of what hosts take, by job, where there are some.
select array_agg(m.n) as ns, array_agg(m.attempts) as attempts,
       case when %(granted)s::timestamptz is not null then (
         select jsonb_object_agg(s.job_id, s.secrets) from job_secrets s where s.job_id = any(array(select id from moved))
       ) end as secrets
from moved m;

-- name: note_passed
-- Written only where it changes, or grows old (TAKE-2).
update passed_over set at = coalesce(%(now)s::timestamptz, clock_timestamp()), holds = %(holds)s, job_ids = %(ids)s
where holds <> %(holds)s or job_ids <> %(ids)s::text[]
   or (at < coalesce(%(now)s::timestamptz, clock_timestamp()) - interval '1 second' and job_ids <> '{}');

-- name: find_unoffered
-- Candidates only; each is checked again under its lock.
select j.id from jobs j join attempts a on a.job_id = j.id and a.number = j.attempts
where j.state = 'reserved' and a.reserved_at <= %(before)s
  and exists (select from tasks t where t.job_id = j.id and t.state = 'reserved' and t.replaced = 0
              and (t.offered_at is null or (t.claimed_at is null and not t.barrier)))
order by j.id;

-- name: read_running
-- Tasks that hold room, for jobs that were passed over: when each ends at the latest, and whether it may be
-- preempted. A gang with finished ranks would fail if it were stopped (GANG-5), unless its spec lets it start anew.
select t.job_id, t.host_id, j.epoch, j.queue, j.project, j.priority, cardinality(t.devices) as devices, t.cpu_slots, t.memory_bytes,
       coalesce(extract(epoch from c.at - t.started_at), 0)::double precision as ran_seconds,
       replace(j.spec->>'time_limit_seconds', 'off', 'infinity')::double precision as time_limit_seconds,
       (j.spec->>'expected_seconds')::double precision as expected_seconds,
       case when j.spec ? 'executor' then '' when j.array_id is not null then 'array:' || j.array_id else coalesce(j.spec->>'name', '') end as kin,
       j.state = 'draining' and t.state = 'preempting' as draining, -- false where one member stops alone, because its job runs on
       s.stoppable and not coalesce((j.spec->>'interactive')::boolean, false) as stoppable, s.stoppable and j.preemptible as preemptible
from tasks t join jobs j on j.id = t.job_id
cross join lateral (select j.state = 'running' and (
  j.tasks = 1 or coalesce((j.spec->>'supervised')::boolean, false) or coalesce(j.spec->>'on_partial', 'fail') = 'restart'
  or not exists (select from tasks d where d.job_id = j.id and d.state = 'done')) as stoppable) s
cross join (select coalesce(%(now)s::timestamptz, clock_timestamp()) as at) c
where t.state in ('reserved', 'running', 'preempting');

-- name: read_spans
-- How long jobs of these names took, or members of these arrays: the longest of the last ten that succeeded with their
-- first attempt, of the last thousand. A job that was tried again may have gone on from a checkpoint.
select p.project, p.kin, max(s.seconds)::double precision as seconds
from unnest(%(projects)s::text[], %(kin)s::text[]) as p(project, kin) cross join lateral (
  (select extract(epoch from n.ended_at - n.started_at) as seconds from (
     select j.* from jobs j
     where j.project = p.project and j.name = p.kin and j.spec ? 'name' and j.array_id is null and not j.spec ? 'executor'
     order by j.id desc
     limit 1000
   ) n
   where n.state = 'succeeded' and n.attempts = 1
   order by n.id desc
   limit 10)
  union all
  (select extract(epoch from m.ended_at - m.started_at) from jobs m
   where m.array_id = substr(p.kin, 7) and p.kin like 'array:%%' and m.state = 'succeeded' and m.project = p.project
     and m.attempts = 1
   order by m.id desc
   limit 10)
) s
where s.seconds is not null
group by 1, 2;

-- name: read_reserved
-- Jobs that do not run yet, when their attempt was reserved, and whether an earlier attempt got past its start.
select j.id, a.reserved_at, coalesce(%(now)s::timestamptz, clock_timestamp()) as now, exists (
         select from attempts e where e.job_id = j.id and e.number < j.attempts and e.started_at is not null
           and (e.cause is null or e.cause <> all(%(unstarted)s::text[]))) as ran_before
from jobs j join attempts a on a.job_id = j.id and a.number = j.attempts
where j.state = 'reserved' and (%(ids)s::text[] is null or j.id = any(%(ids)s))
order by j.id;
