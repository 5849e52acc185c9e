-- The lead, one row. One replica leads, and its lead runs out unless it renews it. `number` grows with every change of leader. It
-- is the key of the row, so that a change of leader waits for the transactions of the old one that have passed `check_lead`: a
-- renewal leaves the key alone and waits for nothing.

create table leadership (
  number     bigint primary key,
  holder     text not null,
  expires_at timestamptz not null
);
insert into leadership (number, holder, expires_at) values (0, '', '-infinity');

-- LEAD-3, called as the last statement of a leader's transaction. One that wrote nothing needs no lead.
create function check_lead(held bigint, at timestamptz) returns void language plpgsql as $$
begin
  if pg_current_xact_id_if_assigned() is null then
    return;
  end if;
  perform 1 from leadership where number = held and expires_at > coalesce(at, clock_timestamp()) for key share;
  if not found then
    raise exception 'another replica leads';
  end if;
end
$$;

-- name: take_lead
-- By its holder at once, because a holder that asks anew has lost sight of its lead; by others when it has run out.
update leadership set number = number + 1, holder = %(holder)s,
  expires_at = coalesce(%(now)s::timestamptz, clock_timestamp()) + make_interval(secs => %(seconds)s)
where holder = %(holder)s or expires_at <= coalesce(%(now)s::timestamptz, clock_timestamp())
returning number;

-- name: renew_lead
-- A lead that ran out is not renewed, even if no other replica took it: its holder begins anew (LEASE-4).
update leadership set expires_at = coalesce(%(now)s::timestamptz, clock_timestamp()) + make_interval(secs => %(seconds)s)
where number = %(number)s and expires_at > coalesce(%(now)s::timestamptz, clock_timestamp())
returning number;

-- name: give_lead_back
update leadership set expires_at = '-infinity' where number = %(number)s;

-- name: look
-- Which of the loops `asked` for may have work, for all of them at once (LOOK-1): each condition holds wherever the loop's own
-- first statement would find something, and mostly in no other case. A name that is not here always has work. And the revision
-- of the settings, so that nothing reads them anew while it stays. The statement's time is a value the indexes can be searched
-- by; the clock's is not. Live jobs are looked for queue by queue, because that is how they are indexed.
select coalesce((select settings_rev from cluster), 0) as revision, array(select a.name from unnest(%(asked)s::text[]) as a(name) where case a.name
  when 'admit' then (select j.place from jobs j where j.state = 'queued' order by j.queue, j.priority desc, j.place limit 1) is not null
    or exists (select from tasks where state = 'blocked')
  when 'drains' then exists (select from queues q cross join lateral (
    select from jobs j where j.queue = q.name and j.state = 'draining' limit 1) d)
  when 'reservations' then exists (select from queues q cross join lateral (
    select from jobs j where j.queue = q.name and j.state = 'reserved' limit 1) d)
  when 'members' then exists (select from tasks t join jobs j on j.id = t.job_id
    where j.state in ('reserved', 'running')
      and (t.state in ('failed', 'preempted') or (t.state = 'reserved' and t.replaced > 0)))
  when 'leases' then exists (select from tasks t where t.state in ('reserved', 'running', 'preempting')
    and t.lease_until + greatest(1.0, 0.05 * t.lease_ttl_seconds) * interval '1 second'
      < coalesce(%(now)s::timestamptz, statement_timestamp()))
  when 'sessions' then exists (select from sessions where state <> 'ended')
  when 'due' then exists (select from jobs where state = 'waiting' and wait_cause in ('start_time', 'back_off')
      and wait_until <= coalesce(%(now)s::timestamptz, statement_timestamp()))
    or exists (select from jobs where state = 'waiting' and wait_cause = 'retries_held')
  when 'dependants' then exists (select from jobs where awaited and state in ('succeeded', 'failed', 'cancelled'))
    or exists (select from arrays a where a.awaited and a.cancel_reason is null and not exists (
      select from jobs j where j.array_id = a.id and j.state in ('waiting', 'queued', 'reserved', 'running', 'draining')))
  when 'arrays' then exists (select from arrays where cancel_reason is not null)
    or exists (select from arrays where lined and held = '')
  when 'schedules' then exists (select from schedules
    where paused_at is null and next_at <= coalesce(%(now)s::timestamptz, statement_timestamp()))
  when 'children' then exists (select from jobs c join jobs p on p.id = c.spec->>'parent'
    where c.spec ? 'parent' and c.ended_at is null and c.drain_cause is distinct from 'user_cancelled'
      and not coalesce((c.spec->>'detached')::boolean, false)
      and (p.state = 'cancelled' or p.drain_cause = 'user_cancelled'))
  when 'dead_hosts' then exists (select from heartbeats b where b.flagged_dead_at is null
    and b.heartbeat_at < coalesce(%(now)s::timestamptz, statement_timestamp()) - make_interval(secs => %(silent_seconds)s)
    and exists (select from tasks t where t.host_id = b.host_id and t.state in ('reserved', 'running', 'preempting')))
  when 'host_drains' then exists (select from hosts
    where state = 'draining' and drain_deadline <= coalesce(%(now)s::timestamptz, statement_timestamp()))
  when 'outputs' then exists (select from outputs o join attempts a on a.job_id = o.job_id and a.number = o.attempt
      where o.state = 'collecting' and a.state = 'ended')
    or exists (select from outputs where digest <> '' and state <> 'collecting'
      and updated_at < coalesce(%(now)s::timestamptz, statement_timestamp()) - make_interval(secs => %(keep_seconds)s))
    or exists (select from outputs o left join jobs j on j.id = o.job_id where j.id is null)
  when 'webhooks' then exists (select from webhooks where state = 'active')
  when 'dispatch' then exists (select from workflow_outbox)
  when 'executors' then %(ahead)s::boolean or exists (select from call_ready)
    or exists (select from jobs where spec ? 'executor' and state in ('waiting', 'queued', 'reserved', 'running', 'draining'))
  when 'calls' then exists (select from call_batches) or exists (select from call_waiting)
    or exists (select from call_sets where count is null and run is null and ended_at is null)
  when 'ledger' then exists (select from ledger_cursor
      where at <= coalesce(%(now)s::timestamptz, statement_timestamp()) - interval '1 minute')
    or not exists (select from ledger_cursor) and exists (select from host_states)
  else true end) as due;

-- name: look_again
-- What a first look did not find (DOUBT-1). One row always, with the time and the lead. The guards are those of the first
-- looks: `renew_tasks`, and `find_task_holder` where no host is named.
select coalesce(%(now)s::timestamptz, clock_timestamp()) as now, (select max(number) from leadership) as lead,
  array(select b.host_id from heartbeats b join hosts h on h.id = b.host_id where b.host_id = any(%(hosts)s::text[])) as hosts,
  array(
    select g.n from unnest(%(jobs)s::text[], %(ranks)s::integer[], %(epochs)s::bigint[], %(task_hosts)s::text[], %(incarnations)s::text[])
      with ordinality as g(job_id, rank, epoch, host_id, incarnation, n)
    join tasks t on t.job_id = g.job_id and t.rank = g.rank and t.epoch = g.epoch
    join hosts h on h.id = t.host_id and (g.host_id is not null or h.key_hash is not null)
    where t.state in ('reserved', 'running', 'preempting')
      and t.host_id = coalesce(g.host_id, t.host_id) and t.incarnation = coalesce(g.incarnation, t.incarnation)) as tasks,
  array(
    select g.n from unnest(%(hashes)s::bytea[], %(kinds)s::text[]) with ordinality as g(hash, kind, n),
      (select coalesce(%(now)s::timestamptz, clock_timestamp()) as now) c
    where g.kind = 'host' and exists (select from hosts h where h.key_hash = g.hash)
      or g.kind = 'token' and exists (select from tokens t where t.secret_hash = g.hash and t.revoked_at is null and (t.expires_at is null or t.expires_at > c.now))
      or g.kind = 'sign_in' and exists (
        select from sign_ins s join tokens t on t.id = s.token_id
        where s.secret_hash = g.hash and s.ended_at is null and s.expires_at > c.now
          and t.revoked_at is null and (t.expires_at is null or t.expires_at > c.now))) as hashes,
  array(select j.id from jobs j where j.id = any(%(known_jobs)s::text[])) as jobs,
  array(select r.id from workflow_runs r where r.id = any(%(known_runs)s::text[])) as runs;
