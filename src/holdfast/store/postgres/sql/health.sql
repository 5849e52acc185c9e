-- name: note_ends
insert into host_ends (host_id, hour, passed, failed)
values (%(host_id)s, date_trunc('hour', %(at)s::timestamptz), %(passed)s, %(failed)s)
on conflict (host_id, hour) do update
set passed = host_ends.passed + excluded.passed, failed = host_ends.failed + excluded.failed;

-- name: note_failures
insert into host_failures (host_id, job_id, attempt, at)
select %(host_id)s, g.job_id, g.attempt, %(at)s
from unnest(%(jobs)s::text[], %(attempts)s::integer[]) as g(job_id, attempt)
on conflict (host_id, job_id, attempt) do nothing;

-- name: insert_check
-- An agent that did not hear the answer reports again under the same number.
insert into host_checks (host_id, number, incarnation, at, kind, verdict, message, results, measured)
values (%(host_id)s, %(number)s, %(incarnation)s, %(at)s, %(kind)s, %(verdict)s, %(message)s, %(results)s, %(measured)s)
on conflict (host_id, number) do nothing;

-- name: read_check_state
select h.state,
  exists (select from host_checks c where c.host_id = h.id and c.incarnation = %(incarnation)s
    and c.kind = 'preflight') as preflighted,
  extract(epoch from %(now)s::timestamptz - coalesce(c.at, h.registered_at))::double precision as last_check_seconds,
  (select count(*) from host_failures f where f.host_id = h.id
    and f.at > coalesce(c.at, '-infinity'::timestamptz))::integer as failed_since
from hosts h
left join lateral (select at from host_checks c where c.host_id = h.id order by at desc limit 1) c on true
where h.id = %(id)s;

-- name: list_checks
select number, incarnation, at, kind, verdict, message, results, measured from host_checks
where host_id = %(host_id)s order by at desc, number limit %(limit)s;

-- name: end_lifted_asides
-- An operator's release lifts these decisions too.
update host_asides a set ended_at = %(now)s
from hosts h
where a.ended_at is null and h.id = a.host_id and h.state <> 'quarantined';

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

-- name: read_programs
select id, project, spec from jobs where id = any(%(jobs)s);

-- name: open_aside
insert into host_asides (host_id, kind, at, until, reason, jobs)
values (%(host_id)s, %(kind)s, %(at)s, %(until)s, %(reason)s, %(jobs)s)
on conflict (host_id) where ended_at is null do update
set kind = excluded.kind, at = excluded.at, until = excluded.until, reason = excluded.reason, jobs = excluded.jobs;

-- name: close_aside
update host_asides set ended_at = %(now)s where host_id = %(host_id)s and ended_at is null;

-- name: prune_checks
delete from host_checks where at < %(before)s;

-- name: prune_ends
delete from host_ends where hour < %(before)s;

-- name: prune_failures
delete from host_failures where at < %(before)s;

-- name: prune_asides
delete from host_asides where ended_at < %(before)s;
