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
