-- Attempts of jobs: written when they are reserved, when they start and when they end, and kept as long as their job.

create table attempts (
  job_id       text not null,
  number       integer not null,
  parent       integer, -- the attempt before it
  epoch        bigint not null,
  state        text not null constraint attempts_state_check check (state = any ('{reserved,running,draining,ended}')),
  outcome      text constraint attempts_outcome_check check (outcome = any (
    '{succeeded,failed,cancelled,requeued,expired}')),
  cause        text constraint attempts_cause_check check (cause = any (
    '{nonzero_exit,program_error,oom_killed,image_pull_failure,setup_failed,start_timeout,app_unusable,unknown,agent_transient,gpu_fault,time_limit,
      stalled,gpu_wedged,silent_corruption,straggler,left_idle,preempted,host_drained,scaled_down,sibling_drained,user_cancelled,dependency,validation_error,
      quota_exceeded,malformed_report}')),
  rule         text,  -- the rule of classification that named the cause
  charged_to   text constraint attempts_charged_to_check check (charged_to = any ('{retries,infra,watchdog,nothing,never}')),
  retry_count  integer not null default 0, -- retries that were charged before it
  policy       jsonb, -- the retry policy that decided what follows it
  next_at      timestamptz, -- when the attempt after it is due
  exit_code    integer,
  reason       text not null default '',
  host         text, -- names of its hosts, as they are shown
  host_ids     text[] not null default '{}', -- by rank
  road         text not null default 'leader', -- the leader placed it, or a host took it (TAKE-1)
  trigger_rank integer,
  members      jsonb not null default '[]', -- how each rank ended
  -- What the host told of the end of a job of one task that succeeded, in JSON as it came: to read it into `members` costs more
  -- than to insert the row. `members` is empty then, and `members_of` makes it.
  told         text,
  step         bigint,
  total        bigint,
  began_step   bigint, -- the first step of a rank, where that is below the step of the checkpoint that it was given (UNSAVED-2)
  reserved_at  timestamptz not null,
  started_at   timestamptz,
  ended_at     timestamptz,
  taken_batch  bigint, -- the rows of `event_batches` that hold the events of its reservation and of its end
  ended_batch  bigint,
  primary key (job_id, number),
  constraint attempts_counts check (
    number >= 1 and epoch >= 1 and retry_count >= 0 and (parent is null or parent >= 1 and parent < number)),
  constraint attempts_shape check (
    (state = 'ended') = (ended_at is not null) and (state = 'ended') = (outcome is not null)
    and road = any ('{leader,host}'))
) with (fillfactor = 85);

-- Attempts that did not go on from their checkpoint: few, and looked for among jobs that could be stopped.
create index attempts_broken on attempts (job_id) where began_step is not null;
-- The first attempt of a job has the epoch 1, so the primary key says already that there is one of them.
create unique index attempts_later_epochs on attempts (job_id, epoch) where number > 1;

-- The ledger looks for what ended lately. Such an index costs an end nothing, and keeps no row from its place.
create index attempts_ended on attempts using brin (ended_at) with (pages_per_range = 32, autosummarize = on);

create function members_of(a attempts) returns jsonb language sql stable as $$
  select case when a.told is null then a.members else jsonb_build_array(jsonb_build_object(
    'rank', 0, 'host', a.host, 'state', 'done', 'exit_code', 0, 'facts', a.told::jsonb)) end
$$;

-- ---- Submission and reads.

-- name: read_attempts
select {columns:attempt:a but members step total}, members_of(a) as members,
       case when b.beat_at is null then a.step else b.step end as step,
       case when b.beat_at is null then a.total else b.total end as total, b.first_beat_at,
       exists (select from forensics f where f.job_id = a.job_id and f.attempt = a.number) as has_forensics,
       (select j.spec->'code' from jobs j where j.id = a.job_id) as code
from attempts a left join lateral (
  select t.step, t.total, t.beat_at, min(t.first_beat_at) over () as first_beat_at from tasks t
  where t.job_id = a.job_id and t.attempt = a.number and t.beat_at is not null
  order by t.beat_at desc, t.rank limit 1
) b on a.state <> 'ended'
where a.job_id = %(id)s
order by a.number;

-- name: last_retry_counts
-- As last_retry_count, of many jobs.
select distinct on (a.job_id) a.job_id, a.retry_count from attempts a
where a.job_id = any(%(ids)s) order by a.job_id, a.number desc;

-- name: last_retry_count
-- How many retries a job had made before its last attempt. The job is locked.
select a.retry_count from attempts a where a.job_id = %(id)s order by a.number desc limit 1;

-- name: note_broken
-- Once for each attempt, by the rank that tells it first. Guarded as a report is (FENCE-1).
with told as (
  select distinct on (g.job_id) g.*, t.attempt, t.queue
  from unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[], %(steps)s::bigint[], %(given)s::bigint[])
    as g(job_id, rank, epoch, step, given)
  join tasks t on t.job_id = g.job_id and t.rank = g.rank and t.epoch = g.epoch and t.host_id = %(host)s
  where t.job_id = any(%(jobs)s::text[]) order by g.job_id, g.rank
), locked as (
  select a.job_id, a.number, n.rank, n.epoch, n.step, n.given, n.queue
  from told n join attempts a on a.job_id = n.job_id and a.number = n.attempt
  where a.job_id = any(%(jobs)s::text[]) and a.began_step is null and a.state <> 'ended'
  order by a.job_id for no key update of a
)
update attempts a set began_step = l.step from locked l
where a.job_id = any(%(jobs)s::text[]) and a.job_id = l.job_id and a.number = l.number
returning a.job_id, a.number as attempt, l.rank, l.epoch, l.step, l.given, l.queue,
  (select project from jobs j where j.id = a.job_id) as project;

-- ---- Reads for many jobs at once. Each lateral part is one short index scan with a bound for each job.

-- name: read_attempts_of
-- Without members, because a gang of a thousand ranks has a thousand of them in every attempt.
select {columns:attempt:a but members step total},
       case when b.beat_at is null then a.step else b.step end as step,
       case when b.beat_at is null then a.total else b.total end as total, b.first_beat_at,
       exists (select from forensics f where f.job_id = a.job_id and f.attempt = a.number) as has_forensics,
       (select j.spec->'code' from jobs j where j.id = a.job_id) as code
from unnest(%(ids)s::text[]) as asked(id) cross join lateral (
  select * from attempts x
  where x.job_id = asked.id and (%(before)s::integer is null or x.number < %(before)s)
    and (%(cause)s::text is null or x.cause = %(cause)s)
  order by x.number desc limit %(last)s
) a left join lateral (
  select t.step, t.total, t.beat_at, min(t.first_beat_at) over () as first_beat_at from tasks t
  where t.job_id = a.job_id and t.attempt = a.number and t.beat_at is not null
  order by t.beat_at desc, t.rank limit 1
) b on a.state <> 'ended'
order by a.job_id, a.number;

-- name: read_attempts_by_key
select {columns:attempt:a but members step total},
       case when %(members)s then members_of(a) else '[]'::jsonb end as members,
       case when b.beat_at is null then a.step else b.step end as step,
       case when b.beat_at is null then a.total else b.total end as total, b.first_beat_at,
       exists (select from forensics f where f.job_id = a.job_id and f.attempt = a.number) as has_forensics,
       (select j.spec->'code' from jobs j where j.id = a.job_id) as code
from unnest(%(ids)s::text[], %(numbers)s::integer[]) as asked(id, number)
join attempts a on a.job_id = asked.id and a.number = asked.number
left join lateral (
  select t.step, t.total, t.beat_at, min(t.first_beat_at) over () as first_beat_at from tasks t
  where t.job_id = a.job_id and t.attempt = a.number and t.beat_at is not null
  order by t.beat_at desc, t.rank limit 1
) b on a.state <> 'ended';

-- name: read_members_of
-- Unpacked here, so that only the ranks that are asked for are sent.
select asked.id as job_id, asked.number, m.member
from unnest(%(ids)s::text[], %(numbers)s::integer[]) as asked(id, number)
join attempts a on a.job_id = asked.id and a.number = asked.number
cross join lateral (
  select x as member, (x->>'rank')::integer as rank from jsonb_array_elements(members_of(a)) x
  where (x->>'rank')::integer > %(after)s order by 2 limit %(first)s
) m
order by asked.id, asked.number, m.rank;

-- ---- Syncs: thousands of hosts a call, one transaction, few statements, none of them per row.

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

-- ---- Moves: their rows are loaded and their changes written by one statement a table, for any number of rows.

-- name: write_attempts
update attempts a set {merge:attempt:a}
from jsonb_to_recordset(%(rows)s::jsonb) as x({recordset:attempt})
where a.job_id = any(%(ids)s) and a.job_id = x.job_id and a.number = x.number;

-- name: add_taken_reason
-- Of attempts that the shutdown of a host stopped. They ended before its goodbye, at most a long grace earlier; the bound on
-- `ended_at` keeps the scan short.
update attempts a set reason = concat_ws('; ', nullif(a.reason, ''), %(words)s::text)
from hosts h
where h.id = %(id)s and a.ended_at >= h.state_at - interval '15 minutes' and a.cause = 'host_drained' and a.rule = %(rule)s
  and a.host_ids[coalesce(a.trigger_rank, 0) + 1] = h.id;

-- ---- Logs.

-- name: find_attempt_on_host
-- The sender must be the host that ran this rank under this epoch, as its first host or as a replacement.
select number from attempts where job_id = %(job_id)s and epoch = %(epoch)s and host_ids[%(rank)s::integer + 1] = %(host_id)s
union all
select attempt from replacements
where job_id = %(job_id)s and epoch = %(epoch)s and rank = %(rank)s and host_id = %(host_id)s;

-- name: list_log_lives
select a.epoch, a.host_ids[%(rank)s::integer + 1] as host_id, 0::bigint as base, 0 as number from attempts a
where a.job_id = %(job_id)s and a.number = %(attempt)s and a.host_ids[%(rank)s::integer + 1] is not null
union all
select r.epoch, r.host_id, (r.log_base->>%(stream)s::text)::bigint, r.number from replacements r
where r.job_id = %(job_id)s and r.attempt = %(attempt)s and r.rank = %(rank)s
order by number;

-- ---- Upkeep.

-- name: prune_attempts
delete from attempts where job_id = any(%(ids)s);

-- name: settle_reservations
update attempts a set reserved_at = least(a.reserved_at, coalesce(%(now)s::timestamptz, clock_timestamp()))
from jobs j
where j.state in ('reserved', 'running', 'draining') and a.job_id = j.id and a.number = j.attempts
  and a.reserved_at > coalesce(%(now)s::timestamptz, clock_timestamp());
