-- Spells in which renewals of leases could be written, mostly one row: the leader stamps its end every other second. The time
-- between two spells counts for no lease (LEASE-6).
-- after: heartbeats, hosts, tasks, jobs, attempts, events, event_batches, ledger_ends, log_reads, session_links

create table renewal_spells (
  since timestamptz primary key,
  until timestamptz not null,
  check (until >= since)
) with (fillfactor = 50);

-- Locks the tables that syncs write, as syncs do, so that what holds syncs up holds the stamp up, and reads the clock
-- afterwards. A stamp that comes `gap` seconds after the last one begins a new spell. A crash may lose it, which only makes a
-- gap longer. `heard_since`: since when there was no gap of `pause` seconds; null where there was none.
create function stamp_renewals(moment timestamptz, gap double precision, pause double precision)
returns table (at timestamptz, heard_since timestamptz) language plpgsql as $$
declare
  last renewal_spells;
begin
  perform set_config('synchronous_commit', 'off', true);
  lock table heartbeats, hosts, tasks, jobs, attempts, events, event_batches, ledger_ends, log_reads, session_links
    in row exclusive mode;
  select * into last from renewal_spells s order by s.since desc limit 1 for update;
  at := coalesce(moment, clock_timestamp());
  if last.since is null or last.until + make_interval(secs => gap) < at then
    insert into renewal_spells values (at, at) on conflict do nothing;
    delete from renewal_spells s where s.until < at - interval '30 days' and s.since < last.since;
  else
    update renewal_spells s set until = greatest(s.until, at) where s.since = last.since;
  end if;
  select max(s.since) into heard_since from (
    select x.since, x.since - lag(x.until) over (order by x.since) as silent from renewal_spells x) s
  where s.silent > make_interval(secs => pause);
  return next;
end
$$;

-- name: stamp_renewals
select at, heard_since from stamp_renewals(%(now)s::timestamptz, %(gap)s, %(pause)s);

-- name: read_spells
-- And the time, read after the locks of the statements before.
select coalesce(%(now)s::timestamptz, clock_timestamp()) as now, s.since, s.until
from (select) one left join renewal_spells s on true
order by s.since;

-- name: settle_spells
-- After the clock was set back: no spell ends, and none begins, in the future (LEASE-5).
with later as (
  delete from renewal_spells where since > coalesce(%(now)s::timestamptz, clock_timestamp())
)
update renewal_spells set until = coalesce(%(now)s::timestamptz, clock_timestamp())
where until > coalesce(%(now)s::timestamptz, clock_timestamp()) and since <= coalesce(%(now)s::timestamptz, clock_timestamp());
