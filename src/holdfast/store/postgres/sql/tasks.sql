-- Tasks of live attempts alone, one row a rank: the hot table stays as small as the fleet. A renewal touches no indexed column,
-- so it is written in place (HOT).

create table tasks (
  job_id            text not null,
  rank              integer not null,
  epoch             bigint not null,
  attempt           integer not null,
  -- `blocked` in a live attempt: a member of a supervised job that waits for another host while the others run.
  state             text not null constraint tasks_state_check check (state = any (
    '{blocked,reserved,running,done,failed,preempting,preempted}')),
  queue             text not null,
  gpus              integer not null,
  cpu_slots         integer not null,
  memory_bytes      bigint not null,
  host_id           text,
  incarnation       text,
  devices           integer[] not null default '{}', -- indexes of its host's GPUs
  port              integer, -- kept for it on its host
  lease_ttl_seconds double precision not null,
  lease_until       timestamptz, -- null until the first offer, because no host has a lease that it was never told of
  offered_at        timestamptz,
  claimed_at        timestamptz, -- its host has kept a place for it
  barrier           boolean not null default true, -- open: it may start; a gang's opens when every rank was claimed (GANG-1)
  started_at        timestamptz,
  ended_at          timestamptz,
  step              bigint, -- its newest report, with total, beat_at and section
  total             bigint,
  beat_at           timestamptz,
  first_beat_at     timestamptz, -- the first one that its host told of
  rate              double precision, -- its steps in a second of the last five minutes
  moved_at          timestamptz, -- when its step last moved forward
  section           text,
  nan_beats         integer not null default 0, -- losses in a row that were not finite, by its newest report
  section_until     timestamptz, -- until when its section excuses the ranks of its gang that wait for it on other hosts
  facts             jsonb, -- what its host told of its end
  tally             jsonb, -- what it spent its time on, as its host told about once a minute, and when
  tally_at          timestamptz,
  -- The next four are of members of supervised jobs.
  replaced          integer not null default 0, -- how often another host took over this rank
  reserved_at       timestamptz, -- since when a replacement has its place
  ready_at          timestamptz, -- blocked: the member gets no place before; null: it is parked until a person frees it
  start_failures    integer not null default 0, -- in a row
  -- A member may be stopped by itself, because its host is drained; all others are stopped by their job's drain.
  stop_cause        text,
  stop_reason       text,
  stop_hard         boolean not null default false,
  primary key (job_id, rank),
  constraint tasks_counts check (
    least(rank, replaced, start_failures) >= 0 and epoch >= 1 and attempt >= 1 and lease_ttl_seconds > 0
    and (port is null or port >= 1 and port <= 65535)),
  constraint tasks_shape check (
    (state = 'blocked' or host_id is not null and incarnation is not null and ready_at is null)
    and (offered_at is null) = (lease_until is null)
    and (state = any ('{done,failed,preempted}')) = (ended_at is not null))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);

create index tasks_of_host on tasks (host_id);
create index tasks_orders on tasks (host_id) where state in ('reserved', 'preempting');
create index tasks_blocked on tasks (job_id) where state = 'blocked';
create index tasks_fallen on tasks (job_id) where state in ('failed', 'preempted');
-- Looked into whenever a job ends. Jobs of one task are never in it.
create index tasks_replaced on tasks (job_id) where replaced > 0;

-- ---- Submission and reads.

-- name: read_tasks
select {columns:task:t}, h.name as host_name
from tasks t left join hosts h on h.id = t.host_id
where t.job_id = any(%(ids)s)
order by t.job_id, t.rank;

-- ---- Reads for many jobs at once. Each lateral part is one short index scan with a bound for each job.

-- name: read_tasks_of
select {columns:task:t}, h.name as host_name
from unnest(%(ids)s::text[]) as asked(id) cross join lateral (
  select * from tasks x where x.job_id = asked.id and x.rank > %(after)s order by x.rank limit %(first)s
) t left join hosts h on h.id = t.host_id
order by t.job_id, t.rank;

-- ---- Admission: from queued to reserved, and back when the reservation was not offered in time.

-- name: read_blocked
-- Members of supervised jobs that wait for another host and whose time has come, with the hosts to be used last for
-- each. A limited number per job, so that a job that waits for room does not hide the others.
select {candidate:j but job_id tasks gpus cpu_slots memory_bytes waited_seconds},
       b.job_id, b.rank as member, 1 as tasks, b.gpus, b.cpu_slots, b.memory_bytes,
       greatest(0, extract(epoch from %(now)s::timestamptz - b.ready_at))::double precision as waited_seconds,
       j.barred_hosts, a.host_ids[b.rank + 1] as first_host, coalesce((
         select array_agg(distinct r.host_id order by r.host_id) from replacements r
         where r.job_id = b.job_id and r.rank = b.rank and r.attempt = b.attempt), '{}') as earlier_hosts
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

-- name: read_running
-- Tasks that hold room, for jobs that were passed over: when each ends at the latest, and whether it may be
-- preempted. A gang with finished ranks would fail if it were stopped (GANG-5), unless its spec lets it start anew.
-- A job goes on from the oldest of its ranks' newest checkpoints (UNSAVED-1). The table of checkpoints holds a few rows for
-- each rank that saves, and few attempts are broken, so both are read once, and not for each task.
with live as materialized (
  select distinct job_id from tasks where state in ('reserved', 'running', 'preempting')
), newest as (
  select distinct on (k.job_id, k.rank) k.job_id, k.created_at, k.step from checkpoints k
  where k.job_id in (select job_id from live) order by k.job_id, k.rank, k.number desc
), saved as (
  select distinct on (job_id) job_id, created_at, step from newest order by job_id, created_at, step
), broken as (
  select job_id, count(*)::integer as times from attempts where began_step is not null group by job_id
)
select t.job_id, t.host_id, j.epoch, j.queue, j.project, j.priority, cardinality(t.devices) as devices, t.cpu_slots, t.memory_bytes,
       coalesce(extract(epoch from c.at - t.started_at), 0)::double precision as ran_seconds,
       {span:j},
       j.state = 'draining' and t.state = 'preempting' as draining, -- false where one member stops alone, because its job runs on
       case when j.drain_notice_seconds is not null and j.drain_since is not null then
         greatest(0, j.drain_notice_seconds - extract(epoch from c.at - j.drain_since))::double precision end as notice_left_seconds,
       s.stoppable and not coalesce((j.spec->>'interactive')::boolean, false) as stoppable, s.stoppable and j.preemptible as preemptible,
       (j.spec->>'preempt_min_run_seconds')::double precision as min_run_seconds,
       case when k.job_id is not null then greatest(0, extract(epoch from c.at - k.created_at))::double precision end as saved_seconds, k.step as saved_step,
       coalesce(b.times, 0) as broken
from tasks t join jobs j on j.id = t.job_id
left join saved k on k.job_id = t.job_id
left join broken b on b.job_id = t.job_id
cross join lateral (select j.state = 'running' and (
  j.tasks = 1 or coalesce((j.spec->>'supervised')::boolean, false) or coalesce(j.spec->>'on_partial', 'fail') = 'restart'
  or not exists (select from tasks d where d.job_id = j.id and d.state = 'done')) as stoppable) s
cross join (select coalesce(%(now)s::timestamptz, clock_timestamp()) as at) c
where t.state in ('reserved', 'running', 'preempting');

-- ---- Syncs: thousands of hosts a call, one transaction, few statements, none of them per row.

-- name: renew_tasks
with clock as (
  select %(now)s::timestamptz as at
), able as (
  select unnest(%(live_hosts)s::text[]) as host_id
), renewed as (
  {part:renewals}
)
select * from renewed;

-- part: renewals
-- Of tasks whose host is in `able`, at the time in `clock`. Guarded by (task, epoch, host, incarnation): a task that is not
-- returned is lost (FENCE-1). A lease never gets shorter.
with given as (
  select g.*, (select at from clock) as now, interval '1 second' as second
  from unnest(%(live_jobs)s::text[], %(live_ranks)s::int[], %(live_epochs)s::int8[], %(live_hosts)s::text[],
                       %(live_incarnations)s::text[], %(beats)s::bool[], %(steps)s::int8[], %(totals)s::int8[],
                       %(ages)s::float8[], %(sections)s::text[], %(tallies)s::text[],
                       %(rates)s::float8[], %(stills)s::float8[], %(nans)s::int[])
    as g(job_id, rank, epoch, host_id, incarnation, beat, step, total, age, section, tally, rate, still, nan_beats)
), locked as (
  select g.* from given g join tasks t on t.job_id = g.job_id and t.rank = g.rank
  where t.job_id = any(%(live_jobs)s::text[]) and t.epoch = g.epoch and t.host_id = g.host_id
    and g.host_id in (select host_id from able) and t.incarnation = g.incarnation and t.state in ('reserved', 'running', 'preempting')
  order by t.job_id, t.rank
  for no key update of t
)
update tasks t set
  lease_until = greatest(t.lease_until, l.now + t.lease_ttl_seconds * l.second),
  offered_at = coalesce(t.offered_at, l.now),
  step = case when l.beat then coalesce(l.step, t.step) else t.step end,
  total = case when l.beat then coalesce(l.total, t.total) else t.total end,
  section = case when l.beat then l.section else t.section end,
  rate = case when l.beat then l.rate else t.rate end,
  moved_at = case when l.beat then l.now - l.still * l.second else t.moved_at end,
  nan_beats = case when l.beat then l.nan_beats else t.nan_beats end,
  beat_at = case when l.beat then greatest(t.beat_at, l.now - l.age * l.second) else t.beat_at end,
  first_beat_at = coalesce(t.first_beat_at, case when l.beat then l.now - l.age * l.second end),
  tally = coalesce(l.tally::jsonb, t.tally), tally_at = case when l.tally is null then t.tally_at else l.now end
from locked l
where t.job_id = any(%(live_jobs)s::text[]) and t.job_id = l.job_id and t.rank = l.rank
returning t.job_id, t.rank, t.epoch, t.lease_ttl_seconds;

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

-- name: claim_tasks
-- Writes the places kept for ranks of gangs, and returns the gangs whose last rank has one now: only those are
-- loaded, to open their barrier, because hundreds of syncs claim one large gang and none of them may cost as much as
-- the whole gang. The jobs' locks are held, so that of two last claims the second sees the first.
-- tests/store/test_agreement.py holds this to `runs.claim_task`, by which the model claims, and which opens the barrier here too.
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
       j.drain_notice_seconds, case when j.drain_cause is not null then j.trigger_rank end as trigger_rank
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

-- ---- Moves: their rows are loaded and their changes written by one statement a table, for any number of rows.

-- name: lock_tasks
-- A statement of its own after the jobs' locks, so that it reads the rows that the last holder of those locks wrote.
-- The tasks are locked too: offers and renewals write them without the job's lock.
select {columns:task_row:t}, (select h.name from hosts h where h.id = t.host_id) as host_name
from tasks t
where t.job_id = any(%(ids)s)
order by t.job_id, t.rank
for update of t;

-- name: write_tasks
-- The rows were locked when they were loaded, so a beat that is written back is never older.
update tasks t set {assign:task}
from jsonb_to_recordset(%(rows)s::jsonb) as x({recordset:task})
where t.job_id = any(%(ids)s) and t.job_id = x.job_id and t.rank = x.rank;

-- name: rewrite_tasks
-- A member of a supervised job loses or gets its place: writes every column that can change.
update tasks t set {assign:task_place}
from jsonb_to_recordset(%(rows)s::jsonb) as x({recordset:task_place})
where t.job_id = any(%(ids)s) and t.job_id = x.job_id and t.rank = x.rank;

-- name: find_members
-- Members of supervised jobs that need a decision: the fallen, and replacements that have not started.
select t.job_id, t.rank, t.state <> 'reserved' as fallen,
       greatest(0, extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp()) - case when t.state = 'reserved' then t.reserved_at else t.ended_at end))
         ::double precision as seconds
from tasks t join jobs j on j.id = t.job_id
where j.state in ('reserved', 'running')
  and (t.state in ('failed', 'preempted') or (t.state = 'reserved' and t.replaced > 0))
order by t.state = 'reserved', t.job_id, t.rank -- members without a place come first
limit %(limit)s;

-- name: find_unoffered_members
select distinct t.job_id as id from tasks t join jobs j on j.id = t.job_id
where t.state = 'reserved' and t.replaced > 0 and t.offered_at is null and t.reserved_at <= %(before)s
  and j.state in ('reserved', 'running')
order by t.job_id;

-- name: clear_tasks
delete from tasks where job_id = any(%(ids)s);

-- name: tell_sections
-- Guarded as a report is (FENCE-1); written only where it changes by more than a second.
with told as (
  select g.*, case when g.seconds > 0 then coalesce(%(now)s::timestamptz, clock_timestamp()) + g.seconds * interval '1 second' end as until
  from unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[], %(seconds)s::double precision[]) as g(job_id, rank, epoch, seconds)
), locked as (
  select t.job_id, t.rank, n.until from told n join tasks t on t.job_id = n.job_id and t.rank = n.rank
  where t.job_id = any(%(jobs)s::text[]) and t.epoch = n.epoch and t.host_id = %(host)s and t.state = 'running'
    and ((t.section_until is null) <> (n.until is null) or abs(extract(epoch from t.section_until - n.until)) > 1)
  order by t.job_id, t.rank
  for no key update of t
)
update tasks t set section_until = l.until from locked l
where t.job_id = any(%(jobs)s::text[]) and t.job_id = l.job_id and t.rank = l.rank;

-- name: find_excuses
select g.job_id, g.rank, g.epoch, max(extract(epoch from t.section_until - n.at))::double precision as seconds
from unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[]) as g(job_id, rank, epoch)
cross join (select coalesce(%(now)s::timestamptz, clock_timestamp()) as at) n
join tasks t on t.job_id = g.job_id and t.rank <> g.rank and t.state = 'running' and t.section_until > n.at
where t.job_id = any(%(jobs)s::text[])
group by 1, 2, 3;

-- ---- Of one host.

-- name: jobs_on_host
-- Jobs with a live task on the host; `incarnation` leaves out the tasks of the incarnation that just registered.
select distinct t.job_id from tasks t
where t.host_id = %(id)s and t.state in ('reserved', 'running', 'preempting')
  and (%(incarnation)s::text is null or t.incarnation <> %(incarnation)s)
order by t.job_id;

-- name: live_tasks_of_host
select t.job_id, t.rank, t.epoch, t.queue, j.spec
from tasks t join jobs j on j.id = t.job_id
where t.host_id = %(id)s and t.state in ('reserved', 'running', 'preempting')
order by t.job_id, t.rank;

-- ---- Tokens.

-- name: find_task_holder
-- The task as it holds its lease now, and nothing of one that does not.
select h.key_hash as host_key_hash, j.owner, j.project, j.spec ? 'executor' as executor
from tasks t join jobs j on j.id = t.job_id join hosts h on h.id = t.host_id
where t.job_id = %(job_id)s and t.rank = %(rank)s and t.epoch = %(epoch)s
  and t.state in ('reserved', 'running', 'preempting') and h.key_hash is not null;

-- ---- Checkpoints.

-- name: lock_checkpoint_task
-- The job's lock, as for every move: a checkpoint and the end of its attempt take turns. The task row is there
-- exactly while the attempt is (CKPT-1); a rank that has ended may still upload its checkpoint.
select t.attempt, j.queue, j.project from jobs j join tasks t on t.job_id = j.id
where j.id = %(job_id)s and j.state in ('reserved', 'running', 'draining')
  and t.rank = %(rank)s and t.epoch = %(epoch)s and t.host_id = %(host_id)s and t.incarnation = %(incarnation)s
  and t.offered_at is not null
for update of j;

-- name: check_checkpoint_task
-- The same without the lock, before the bytes are read, so that bytes that will be refused are not sent.
select t.attempt from jobs j join tasks t on t.job_id = j.id
where j.id = %(job_id)s and j.state in ('reserved', 'running', 'draining')
  and t.rank = %(rank)s and t.epoch = %(epoch)s and t.host_id = %(host_id)s and t.incarnation = %(incarnation)s
  and t.offered_at is not null;

-- ---- The snapshot of a cycle.

-- name: count_leases
select count(*) from tasks where host_id = %(id)s and state in ('reserved', 'running', 'preempting');

-- name: snapshot_members
-- Members of supervised jobs that wait for another host: each is one task.
select t.queue, count(*) as jobs, t.gpus, t.cpu_slots, t.memory_bytes, coalesce(j.spec->'host_labels', '{}') as host_labels,
       greatest(0, extract(epoch from %(now)s::timestamptz - min(t.ready_at)))::double precision as oldest_seconds,
       greatest(0, extract(epoch from %(now)s::timestamptz - max(t.ready_at)))::double precision as newest_seconds
from tasks t join jobs j on j.id = t.job_id
where t.state = 'blocked' and t.ready_at <= %(now)s and j.state in ('reserved', 'running')
group by t.queue, t.gpus, t.cpu_slots, t.memory_bytes, coalesce(j.spec->'host_labels', '{}')
order by t.queue, t.gpus, t.cpu_slots, t.memory_bytes, 6;

-- ---- Upkeep.

-- name: settle_leases
-- A lease in force cannot end later than its TTL from now.
with ahead as (
  select job_id, rank from tasks
  where state in ('reserved', 'running', 'preempting')
    and lease_until > coalesce(%(now)s::timestamptz, clock_timestamp()) + lease_ttl_seconds * interval '1 second'
  order by job_id, rank for no key update
)
update tasks t set lease_until = least(
    t.lease_until, coalesce(%(now)s::timestamptz, clock_timestamp()) + t.lease_ttl_seconds * interval '1 second')
from ahead where t.job_id = ahead.job_id and t.rank = ahead.rank;
