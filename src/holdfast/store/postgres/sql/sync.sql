-- The hot path: thousands of hosts a call, one transaction, few statements, none of them per row.
--
-- PostgreSQL does not know the sizes of the sets given here, and a plan is kept for all of them. So rows are found by
-- arrays of keys, through an index, and then joined by hashes (`keep_plans`): a plan takes as long as its sets are
-- large, whatever the statistics say. tests/store/test_plans.py holds it.

-- name: keep_plans
-- For the rest of the transaction. Planning anew takes as long as running. Without these, 26 to 34 of the 38 statements
-- that tests/store/test_plans.py looks at read whole tables, because nothing is known of tables that were never analysed,
-- or were when they were empty. What is forbidden has a cost of 1e10, so sessions compile nothing (`session_settings`).
select set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_nestloop', 'off', true),
       set_config('enable_seqscan', 'off', true);

-- name: touch_hosts
-- The incarnation is compared in the locked row, so an old incarnation cannot get past a registration.
-- `orders`: whether the host has tasks to start or stop that it has not heard of, so that most syncs cost no second
-- statement.
with given as (
  select * from unnest(%(ids)s::text[], %(incarnations)s::text[], %(leaving)s::boolean[], %(busy)s::boolean[])
    as g(host_id, incarnation, leaving, busy)
), live as materialized (
  select * from unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[]) as l(job_id, rank, epoch)
), locked as (
  select b.host_id, b.flagged_dead_at, b.heartbeat_at, b.incarnation = g.incarnation as same, g.leaving, g.busy
  from heartbeats b join given g on g.host_id = b.host_id
  where b.host_id = any(%(ids)s::text[])
  order by b.host_id
  for no key update of b
), known as (
  select l.host_id, l.flagged_dead_at, l.heartbeat_at, h.name, h.state, h.faults, h.reason, l.busy,
         l.same and h.key_hash is not null and (h.state <> 'terminated' or l.leaving) as fresh
  from locked l join hosts h on h.id = l.host_id and h.id = any(%(ids)s::text[])
), touched as (
  update heartbeats b set heartbeat_at = greatest(b.heartbeat_at, coalesce(%(now)s, clock_timestamp())), flagged_dead_at = null,
         busy_at = case when k.busy then coalesce(%(now)s, clock_timestamp()) else b.busy_at end
  from known k where b.host_id = k.host_id and k.fresh and b.host_id = any(%(ids)s::text[])
)
select k.host_id, k.name, k.state, k.faults, k.reason, k.fresh, k.flagged_dead_at, k.heartbeat_at,
       k.fresh and exists (
         select from tasks t where t.host_id = k.host_id and t.state in ('reserved', 'preempting')
           and (t.state = 'preempting' or t.offered_at is null or t.claimed_at is not null
                or (t.job_id, t.rank, t.epoch) not in (select job_id, rank, epoch from live))) as orders,
       k.fresh and exists (select from log_reads r where r.host_id = k.host_id and r.at is null) as reads,
       coalesce(%(now)s, clock_timestamp()) as now
from known k;

-- name: renew_tasks
-- Guarded by (task, epoch, host, incarnation): a task that is not returned is lost (FENCE-1). A lease never gets
-- shorter.
with given as (
  select * from unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[], %(hosts)s::text[],
                       %(incarnations)s::text[], %(beats)s::boolean[], %(steps)s::bigint[], %(totals)s::bigint[],
                       %(ages)s::double precision[], %(sections)s::text[])
    as g(job_id, rank, epoch, host_id, incarnation, beat, step, total, age, section)
), locked as (
  select t.job_id, t.rank, g.beat, g.step, g.total, g.age, g.section
  from given g join tasks t on t.job_id = g.job_id and t.rank = g.rank
  where t.job_id = any(%(jobs)s::text[]) and t.epoch = g.epoch and t.host_id = g.host_id
    and t.incarnation = g.incarnation and t.state in ('reserved', 'running', 'preempting')
  order by t.job_id, t.rank
  for no key update of t
)
update tasks t set
  lease_until = greatest(t.lease_until, %(now)s::timestamptz + t.lease_ttl_seconds * interval '1 second'),
  offered_at = coalesce(t.offered_at, %(now)s),
  step = case when l.beat then coalesce(l.step, t.step) else t.step end,
  total = case when l.beat then coalesce(l.total, t.total) else t.total end,
  section = case when l.beat then l.section else t.section end,
  beat_at = case when l.beat then greatest(t.beat_at, %(now)s::timestamptz - l.age * interval '1 second') else t.beat_at end
from locked l
where t.job_id = any(%(jobs)s::text[]) and t.job_id = l.job_id and t.rank = l.rank
returning t.job_id, t.rank, t.epoch, t.lease_ttl_seconds;

-- name: finish_jobs
-- The ends of jobs of one task that succeeded, many at once: task, job, attempt and events in one statement. The moves take
-- every other end (gangs, drains, failures, stale reports), and this one must equal what they write (`runs.end_task`); the
-- conformance suite compares them. What it buys stands on top of sync/ends.py.
with batch as materialized (
  select nextval('event_batches_n_seq') as n
), given as (
  select * from unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[], %(hosts)s::text[],
                       %(incarnations)s::text[], %(runtimes)s::double precision[], %(facts)s::text[],
                       %(steps)s::bigint[], %(totals)s::bigint[], %(ages)s::double precision[]) with ordinality
    as g(job_id, rank, epoch, host_id, incarnation, runtime, facts, step, total, beat_age, n)
), locked as (
  select j.id, j.epoch, j.state = 'reserved' as unseen from jobs j
  where j.id = any(%(jobs)s::text[]) and j.tasks = 1 and j.state = any(%(succeed_from)s)
    and j.retries_charged + j.watchdog_charged + j.infra_charged = 0 -- the moves announce a retry that succeeded
  order by j.id
  for update of j
), gone as (
  delete from tasks t using locked l, given g
  where t.job_id = any(array(select id from locked)) and t.job_id = l.id and g.job_id = l.id and g.epoch = l.epoch and t.rank = g.rank and t.epoch = g.epoch
    and t.host_id = g.host_id and t.incarnation = g.incarnation and t.state = any(%(finish_from)s)
  returning t.job_id, t.rank, t.epoch, t.attempt, t.host_id, coalesce(g.step, t.step) as step,
            coalesce(g.total, t.total) as total,
            greatest(t.beat_at, %(now)s::timestamptz - g.beat_age * interval '1 second') as beat_at, g.n, g.facts, l.unseen,
            coalesce(t.started_at, greatest(coalesce(t.offered_at, %(now)s::timestamptz),
                                            %(now)s::timestamptz - g.runtime * interval '1 second')) as started_at
), done as (
  update jobs j set
    state = 'succeeded', ended_at = %(now)s, outcome = 'succeeded', cause = null, exit_code = 0, trigger_rank = null,
    reason = case when j.attempts = 1 then 'succeeded' else 'succeeded on attempt ' || j.attempts end,
    started_at = case when g.unseen then g.started_at else j.started_at end,
    step = case when g.beat_at is null then j.step else g.step end,
    total = case when g.beat_at is null then j.total else g.total end,
    beat_at = coalesce(g.beat_at, j.beat_at), revision = j.revision + 1
  from gone g where j.id = any(array(select job_id from gone)) and j.id = g.job_id
  returning j.id, j.attempts, j.epoch, j.queue, j.project, j.reason, g.n, g.unseen, g.host_id, g.facts,
            g.step as last_step, g.total as last_total, g.started_at as began, j.origin_run, j.origin_node,
            j.array_id is not null or j.awaited and exists (select from job_dependencies w where w.parent = j.id) as awaited
), posted as (
  insert into workflow_outbox (run, node, kind, ref, due_at)
  select d.origin_run, d.origin_node, 'job', d.id, %(now)s from done d where d.origin_run is not null
), ended as (
  update attempts a set
    state = 'ended', outcome = 'succeeded', exit_code = 0, reason = d.reason, ended_at = %(now)s,
    charged_to = null, step = d.last_step, total = d.last_total, ended_batch = (select n from batch),
    started_at = case when d.unseen then d.began else a.started_at end,
    told = d.facts
  from done d
  where a.job_id = any(array(select id from done)) and a.job_id = d.id and a.number = d.attempts
), logged as (
  insert into event_batches (n, at, kind, data, ids, began_ids, job_ids, attempts, epochs, host_ids, queues, projects, messages)
    overriding system value
  select (select n from batch), %(now)s, 'job.succeeded', '{"exit_code": 0}', array_agg(d.event_id), array_agg(d.began_id),
         array_agg(d.id), array_agg(d.attempts), array_agg(d.epoch), array_agg(d.host_id), array_agg(d.queue),
         array_agg(d.project), array_agg(d.reason)
  from (select case when d.unseen then nextval('events_id_seq') end as began_id, nextval('events_id_seq') as event_id, d.*
        from (select * from done order by n) d) d
  having count(*) > 0
)
-- ns: which of those given were ended. posted: those whose end a workflow waits for. awaited: those for which another job
-- does, or the next of their array.
select array_agg(d.n) as ns, array_agg(d.n) filter (where d.origin_run is not null) as posted,
       array_agg(d.n) filter (where d.awaited) as awaited
from done d;

-- name: find_ended
-- Ends that are on record already. Only an end that its own host reported is acknowledged again; an end that was
-- written for a lost host is stale, and so is a reservation that was taken back.
select g.job_id, g.rank, g.epoch, g.host_id
from unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[], %(hosts)s::text[])
  as g(job_id, rank, epoch, host_id)
join attempts a on a.job_id = any(%(jobs)s::text[]) and a.job_id = g.job_id and a.epoch = g.epoch and a.state = 'ended' and a.host_ids[g.rank + 1] = g.host_id
where exists (
  select from jsonb_array_elements(members_of(a)) m
  where (m->>'rank')::integer = g.rank and m->'facts' is not null and m->'facts' <> 'null' and m->'facts'->>'lost' is null);

-- name: offer_tasks
-- Reserved tasks of these hosts that were not reported. An offer grants the lease. A gang's rank is asked for its claim
-- until that is reported, and offered for its start once the barrier is open, claimed or not (GANG-1).
with given as (
  select * from unnest(%(hosts)s::text[], %(incarnations)s::text[]) as g(host_id, incarnation)
), locked as (
  select t.job_id, t.rank from tasks t join given g on g.host_id = t.host_id and g.incarnation = t.incarnation
  where t.host_id = any(%(hosts)s::text[]) and t.state = 'reserved'
    and (t.job_id, t.rank, t.epoch) not in (
      select * from unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[]))
    and (t.barrier or (t.job_id, t.rank, t.epoch) not in (
      select * from unnest(%(claimed_jobs)s::text[], %(claimed_ranks)s::integer[], %(claimed_epochs)s::bigint[])))
  order by t.job_id, t.rank
  for no key update of t
)
update tasks t set
  offered_at = coalesce(t.offered_at, %(now)s),
  lease_until = greatest(t.lease_until, %(now)s::timestamptz + t.lease_ttl_seconds * interval '1 second')
from locked l
where t.job_id = any(array(select job_id from locked)) and t.job_id = l.job_id and t.rank = l.rank and t.state = 'reserved'
returning t.job_id, t.rank, t.epoch, t.attempt, t.host_id, t.devices, t.lease_ttl_seconds, t.replaced, t.barrier;

-- name: begin_takes
-- Whether hosts may take jobs under these settings, and what the leader has just passed over (TAKE-2).
select c.settings_rev = %(revision)s as allowed, coalesce(%(now)s::timestamptz, clock_timestamp()) as now,
       case when p.holds or p.at < coalesce(%(now)s::timestamptz, clock_timestamp())
                                   - %(seconds)s::double precision * interval '1 second' then '{}'
            else p.job_ids end as passed
from cluster c cross join passed_over p;

-- name: read_room
-- As read_capacity, of a few hosts, with kept plans. Each host's tasks are read once, one host after the other: such a
-- scan forgets the index entries of tasks that are gone, which a bitmap would read again and again until the next
-- vacuum.
select h.id as host_id, h.name, b.incarnation, h.queues, h.labels, h.cpu_slots, h.memory_bytes, h.gpus, h.faults,
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

-- name: read_takable
-- As read_candidates, of the queues that these hosts serve, as columns of one row, because hundreds are read at once and
-- most of their cost is their columns. A column that says one thing of all of them says it once. A queue that is paused
-- is asked again under its lock.
-- specs: jobs that name the same one have one spec. The members of an array share the digest of their array.
-- shuns: the hosts that a job avoids, and those that it bars; null where there are none.
with top as materialized (
  select r.* from queues q
  cross join lateral (
    select j.id, j.epoch, j.queue, j.priority, j.place, j.array_id, j.spec_hash, j.avoid_hosts, j.barred_hosts
    from jobs j
    where j.state = 'queued' and j.queue = q.name
    order by j.priority desc, j.place
    limit %(limit)s
  ) r
  where q.paused_at is null
    and ((select bool_or(h.queues = '{}') from hosts h where h.id = any(%(ids)s::text[]))
         or q.name = any(array(select unnest(h.queues) from hosts h where h.id = any(%(ids)s::text[]))))
  order by r.priority desc, r.place
  limit %(limit)s
)
select array_agg(c.id) as ids,
       case when min(c.epoch) = max(c.epoch) then array[min(c.epoch)] else array_agg(c.epoch) end as epochs,
       case when min(c.queue) = max(c.queue) then array[min(c.queue)] else array_agg(c.queue) end as queues,
       case when min(c.spec) = max(c.spec) then array[min(c.spec)] else array_agg(c.spec) end as specs,
       case when count(c.shuns) = 0 then array[null::text] else array_agg(c.shuns) end as shuns
from (
  select j.id, j.epoch, j.queue collate "C" as queue,
         case when j.array_id is null then encode(j.spec_hash, 'hex') else j.id end collate "C" as spec,
         case when j.avoid_hosts <> '{}' or j.barred_hosts <> '{}' then jsonb_build_array(j.avoid_hosts, j.barred_hosts)::text end as shuns
  from top j
  order by j.priority desc, j.place
) c;

-- name: read_takable_specs
-- One job of each spec of read_takable that this process has not seen yet.
select j.id as job_id, j.name, j.queue, j.project, j.priority, j.tasks, j.gpus, j.cpu_slots, j.memory_bytes, j.spec::text as spec
from jobs j where j.id = any(%(ids)s::text[]);


-- name: claim_tasks
-- Writes the places kept for ranks of gangs, and returns the gangs whose last rank has one now: only those are
-- loaded, to open their barrier, because hundreds of syncs claim one large gang and none of them may cost as much as
-- the whole gang. The jobs' locks are held, so that of two last claims the second sees the first. Must equal
-- `runs.claim_task`.
with given as (
  select * from unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[], %(hosts)s::text[],
                       %(incarnations)s::text[], %(ports)s::integer[])
    as g(job_id, rank, epoch, host_id, incarnation, port)
), claimed as (
  update tasks t set claimed_at = coalesce(t.claimed_at, %(now)s), port = coalesce(nullif(g.port, 0), t.port)
  from given g
  where t.job_id = any(%(jobs)s::text[]) and t.job_id = g.job_id and t.rank = g.rank and t.epoch = g.epoch
    and t.host_id = g.host_id and t.incarnation = g.incarnation and t.state = 'reserved' and not t.barrier
    and (t.claimed_at is null or (g.port <> 0 and g.port is distinct from t.port))
  returning t.job_id, t.rank
)
select c.job_id from (select distinct job_id from claimed) c
where not exists (
  select from tasks t
  where t.job_id = any(array(select job_id from claimed)) and t.job_id = c.job_id and t.claimed_at is null
    and (t.job_id, t.rank) not in (select job_id, rank from claimed));

-- name: read_offered_jobs
-- The jobs of the tasks that offer_tasks, just before, offered these hosts for their start, or had offered already.
-- Found by host, so that it runs in the same round trip as the offers.
select j.id, j.name, j.queue, j.project, j.memory_bytes, j.cpu_slots, j.tasks, j.spec::text as spec,
       exists (select from checkpoints c where c.job_id = j.id) as saved
from jobs j
where j.id = any(array(
  select t.job_id from tasks t
  join unnest(%(hosts)s::text[], %(incarnations)s::text[]) as g(host_id, incarnation)
    on g.host_id = t.host_id and g.incarnation = t.incarnation
  where t.host_id = any(%(hosts)s::text[]) and t.state = 'reserved' and t.barrier));

-- name: read_offered_secrets
-- As read_offered_jobs.
select s.job_id, s.secrets from job_secrets s
where s.job_id = any(array(
  select t.job_id from tasks t
  join unnest(%(hosts)s::text[], %(incarnations)s::text[]) as g(host_id, incarnation)
    on g.host_id = t.host_id and g.incarnation = t.incarnation
  where t.host_id = any(%(hosts)s::text[]) and t.state = 'reserved' and t.barrier));

-- name: read_offered_seats
-- Every rank of the gangs among them and its host's address, for the launch orders.
with seats as materialized (
  select t.job_id, t.rank, t.host_id, t.devices, t.port from tasks t
  where t.job_id = any(array(
    select o.job_id from tasks o
    join unnest(%(hosts)s::text[], %(incarnations)s::text[]) as g(host_id, incarnation)
      on g.host_id = o.host_id and g.incarnation = o.incarnation
    where o.host_id = any(%(hosts)s::text[]) and o.state = 'reserved' and o.barrier
      and (select count(*) from (select from tasks p where p.job_id = o.job_id limit 2) p) > 1))
    and t.state not in ('failed', 'preempted') -- a fallen member has no place, and its devices are free
)
select s.job_id, s.rank, s.host_id, h.name as host_name, h.address, s.devices, s.port
from seats s join hosts h on h.id = any(array(select host_id from seats)) and h.id = s.host_id
order by s.job_id, s.rank;

-- name: commit_for_good
-- Undoes the relaxed commit that the transaction began with.
set local synchronous_commit to default;

-- name: commit_soon
-- What the transaction wrote may be lost by a crash of the server.
set local synchronous_commit to off;

-- name: read_preempts
-- A member of a supervised job may be stopped by itself; a drain of its job then goes first.
with stopping as materialized (
  select t.* from tasks t
  join unnest(%(hosts)s::text[], %(incarnations)s::text[]) as g(host_id, incarnation)
    on g.host_id = t.host_id and g.incarnation = t.incarnation
  where t.host_id = any(%(hosts)s::text[]) and t.state = 'preempting'
)
select t.job_id, t.rank, t.epoch, t.host_id, coalesce(j.drain_cause, t.stop_cause) as drain_cause,
       case when j.drain_cause is null then t.stop_reason else j.drain_reason end as drain_reason,
       case when j.drain_cause is null then t.stop_hard else j.drain_hard end as drain_hard, j.drain_operator_stop,
       case when j.drain_cause is not null then j.trigger_rank end as trigger_rank
from stopping t join jobs j on j.id = any(array(select job_id from stopping)) and j.id = t.job_id
order by t.job_id, t.rank;

-- name: find_lapsed
-- Candidates only; each is checked again under its lock. LEASE-2: TTL and margin after the last grant; LEASE-4: and a
-- full TTL after this leader began. The margin is `core.lease.margin_seconds`.
select distinct t.job_id from tasks t
where t.state in ('reserved', 'running', 'preempting')
  and t.lease_until + greatest(1.0, 0.05 * t.lease_ttl_seconds) * interval '1 second' < %(now)s
  and %(leading_since)s::timestamptz + t.lease_ttl_seconds * interval '1 second' < %(now)s
order by t.job_id;

-- name: find_preempted
select host_id, said from instances where lost = 'preempted';

-- name: find_drained
-- Draining jobs whose every task is confirmed (DRAIN-1), the longest draining first.
select j.id, greatest(0, extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp()) - j.drain_since))::double precision as seconds
from jobs j
where j.state = 'draining'
  and not exists (select from tasks t where t.job_id = j.id and t.state in ('reserved', 'running', 'preempting'))
order by j.drain_since, j.id
limit %(limit)s;
