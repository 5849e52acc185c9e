-- Outputs: what one rank of an attempt left, as a bundle of its project, and their own state (core.data.outputs).
-- after: jobs, hosts, heartbeats, attempts, bundles

create table outputs (
  job_id     text not null,
  attempt    integer not null check (attempt >= 1),
  rank       integer not null check (rank >= 0),
  host_id    text not null,
  state      text not null constraint outputs_state_check check (state = any ('{collecting,complete,partial,lost}')),
  digest     text not null default '', -- of the bundle that is kept; '': nothing is, also after it expired
  files      integer not null default 0,
  bytes      bigint not null default 0,
  left_out   jsonb not null default '[]', -- names that are not kept, and why
  left_more  integer not null default 0,
  reason     text not null default '',
  updated_at timestamptz not null,
  expired_at timestamptz,
  primary key (job_id, attempt, rank)
);
create index outputs_collecting on outputs (host_id) where state = 'collecting';
create index outputs_kept on outputs (updated_at) where digest <> '';

-- name: find_outputs_task
-- A rank of an attempt that was placed on this host may send its outputs, also long after its end. A rank that was replaced
-- may not, because its place in `host_ids` is another's.
select a.number as attempt, j.project, j.spec ? 'outputs' as wanted from attempts a
join jobs j on j.id = a.job_id
join heartbeats b on b.host_id = %(host_id)s and b.incarnation = %(incarnation)s
where a.job_id = %(job_id)s and a.number = %(attempt)s and a.host_ids[%(rank)s::integer + 1] = %(host_id)s;

-- name: lock_outputs
select state, digest from outputs where job_id = %(job_id)s and attempt = %(attempt)s and rank = %(rank)s for update;

-- name: put_outputs
insert into outputs (job_id, attempt, rank, host_id, state, digest, files, bytes, left_out, left_more, reason, updated_at)
values (%(job_id)s, %(attempt)s, %(rank)s, %(host_id)s, %(state)s, %(digest)s, %(files)s, %(bytes)s, %(left_out)s::jsonb,
        %(left_more)s, %(reason)s, coalesce(%(now)s, clock_timestamp()))
on conflict (job_id, attempt, rank) do update set
  host_id = excluded.host_id, state = excluded.state, digest = excluded.digest, files = excluded.files,
  bytes = excluded.bytes, left_out = excluded.left_out, left_more = excluded.left_more, reason = excluded.reason,
  updated_at = excluded.updated_at, expired_at = null;

-- name: drop_earlier_outputs
-- The bundle of an earlier round, which nothing names any more; its packs go with the next sweep.
delete from bundles b where b.project = %(project)s and b.digest = %(digest)s
  and not exists (select from bundle_references r where r.project = b.project and r.digest = b.digest)
returning b.plan;

-- name: read_outputs
select o.job_id, o.attempt, o.rank, o.state, coalesce(h.name, o.host_id) as host, o.digest, o.files, o.bytes, o.left_out,
       o.left_more, o.reason, o.updated_at, o.expired_at
from outputs o left join hosts h on h.id = o.host_id
where o.job_id = %(job_id)s and (%(attempt)s::integer is null or o.attempt = %(attempt)s)
  and (%(rank)s::integer is null or o.rank = %(rank)s)
order by o.attempt, o.rank;

-- name: read_outputs_places
-- Which ranks of which attempts of a job should have outputs: those that began, and where.
select a.number as attempt, g.rank - 1 as rank, coalesce(h.name, g.host_id) as host, a.state = 'ended' as ended,
       h.id is null or h.state = 'terminated'
         or b.heartbeat_at < coalesce(%(now)s, clock_timestamp()) - make_interval(secs => %(lost_seconds)s) as gone
from attempts a cross join lateral unnest(a.host_ids) with ordinality as g(host_id, rank)
left join hosts h on h.id = g.host_id left join heartbeats b on b.host_id = h.id
where a.job_id = %(job_id)s and a.started_at is not null and (%(attempt)s::integer is null or a.number = %(attempt)s)
order by a.number, g.rank;

-- name: lock_left_outputs
-- Of hosts that are gone, or were silent for so long that they count as gone. A host that comes back may still send them.
select c.job_id, c.attempt, c.rank, c.state, c.digest, c.updated_at from outputs c
join attempts a on a.job_id = c.job_id and a.number = c.attempt
left join hosts h on h.id = c.host_id left join heartbeats b on b.host_id = c.host_id
where c.state = any(%(left_by)s) and a.state = 'ended'
  and (h.id is null or h.state = 'terminated'
    or b.heartbeat_at < coalesce(%(now)s, clock_timestamp()) - make_interval(secs => %(lost_seconds)s))
limit 1000 for update of c skip locked;

-- name: settle_outputs
update outputs o set state = g.state, reason = g.reason
from jsonb_to_recordset(%(rows)s::jsonb) as g(job_id text, attempt integer, rank integer, state text, reason text)
where o.job_id = g.job_id and o.attempt = g.attempt and o.rank = g.rank;

-- name: expire_outputs
update outputs o set digest = '', expired_at = coalesce(%(now)s, clock_timestamp())
from (
  select c.job_id, c.attempt, c.rank from outputs c
  where c.digest <> '' and c.state <> 'collecting'
    and c.updated_at < coalesce(%(now)s, clock_timestamp()) - make_interval(secs => %(keep_seconds)s)
  limit 1000 for update of c skip locked
) d
where o.job_id = d.job_id and o.attempt = d.attempt and o.rank = d.rank
returning o.job_id;

-- name: drop_orphan_outputs
-- Of jobs that were pruned.
delete from outputs o where o.job_id in (
  select c.job_id from outputs c left join jobs j on j.id = c.job_id where j.id is null limit 1000);
