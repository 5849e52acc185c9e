-- The ledger by the hour: milliseconds × devices of each subject by name, kept for ninety days, and for two days also by the
-- minute. A row has its minutes in one array, because a row for each minute took fifty times the disk and most of the time of
-- writing and of deleting them. Its one writer is `add_ledger_rows`. Half of each page is free, so that what
-- comes each minute is written in place (HOT).
-- after: ledger_days

create table ledger_hours (
  subject bigint not null,
  at      timestamptz not null,
  name    text not null,
  ms      bigint not null check (ms >= 0),
  -- From its first minute with this name to its last one: a subscript is a minute of the hour. null: pruned.
  minutes integer[] check (0 <= all (minutes)),
  primary key (subject, name, at)
) with (fillfactor = 50);
create index ledger_hours_at on ledger_hours (at);

-- The minutes of a row, one row each.
create function minutes_of(h ledger_hours) returns table (at timestamptz, ms integer) language sql stable as $$
  select h.at + n * interval '1 minute', h.minutes[n] from generate_subscripts(h.minutes, 1) as n
$$;

-- The sums of two rows' minutes.
create function add_minutes(a integer[], b integer[]) returns integer[] language sql immutable strict as $$
  select format('[%s:%s]={%s}', min(n), max(n), string_agg((coalesce(a[n], 0) + coalesce(b[n], 0))::text, ',' order by n))::integer[]
  from generate_series(least(array_lower(a, 1), array_lower(b, 1)), greatest(array_upper(a, 1), array_upper(b, 1))) as n
$$;

-- name: add_ledger_rows
-- Adds to hours, and what it adds to their days with them, so that the two always sum to the same. Each (subject, hour, name)
-- is given once. Minutes and hours that are pruned already are left out: a correction of an old name reaches only what is kept.
with given as (
  select g.subject, g.at, g.name, g.ms, case when g.at >= %(minutes_from)s then g.minutes::integer[] end as minutes
  from unnest(%(subjects)s::bigint[], %(ats)s::timestamptz[], %(names)s::text[], %(ms)s::bigint[], %(minutes)s::text[])
    as g(subject, at, name, ms, minutes)
), hours as (
  insert into ledger_hours (subject, at, name, ms, minutes)
  select subject, at, name, ms, minutes from given where at >= %(hours_from)s order by subject, name, at
  on conflict (subject, name, at) do update set ms = ledger_hours.ms + excluded.ms,
    minutes = case -- later minutes, as nearly always, are put behind the others
      when array_lower(excluded.minutes, 1) > array_upper(ledger_hours.minutes, 1) then ledger_hours.minutes
        || array_fill(0, array[array_lower(excluded.minutes, 1) - array_upper(ledger_hours.minutes, 1) - 1]) || excluded.minutes
      else add_minutes(ledger_hours.minutes, excluded.minutes) end
)
insert into ledger_days (subject, at, name, ms)
select subject, date_trunc('day', at, 'UTC'), name, sum(ms) from given group by 1, 2, 3 order by 1, 3, 2
on conflict (subject, name, at) do update set ms = ledger_days.ms + excluded.ms;

-- name: take_ledger_rows
-- Gives milliseconds another name, the newest first: in the minutes that are kept, before these in the hours, before these in
-- the days. Takes no more than is there. Each (subject, name) is given once.
with asked as (
  select * from unnest(%(subjects)s::bigint[], %(names)s::text[], %(tos)s::text[], %(ms)s::bigint[]) as g(subject, name, becomes, ms)
), found as (
  select h.subject, m.at, h.name, m.ms::bigint as ms
  from asked a join ledger_hours h on h.subject = a.subject and h.name = a.name cross join lateral minutes_of(h) m
  union all
  select h.subject, h.at, h.name, h.ms from asked a join ledger_hours h on h.subject = a.subject and h.name = a.name
  where h.minutes is null
  union all
  select d.subject, d.at, d.name, d.ms from asked a join ledger_days d on d.subject = a.subject and d.name = a.name
  where d.at < %(hours_from)s
), taken as (
  select f.subject, f.at, f.name, a.becomes,
         least(f.ms, a.ms - coalesce(sum(f.ms) over (partition by f.subject, f.name order by f.at desc
           rows between unbounded preceding and 1 preceding), 0))::bigint as ms
  from found f join asked a on a.subject = f.subject and a.name = f.name
), moved as (
  select subject, at, name, -ms as ms from taken where ms > 0
  union all
  select subject, at, becomes, ms from taken where ms > 0
)
select subject, at, name, ms from moved;

-- name: subtract_ledger_rows
-- The part of a correction that takes away, with numbers below zero; `add_ledger_rows` gives it its other name.
with given as (
  select * from unnest(%(subjects)s::bigint[], %(ats)s::timestamptz[], %(names)s::text[], %(ms)s::bigint[], %(minutes)s::text[])
    as g(subject, at, name, ms, minutes)
), hours as (
  update ledger_hours h set ms = h.ms + g.ms, minutes = add_minutes(h.minutes, g.minutes::integer[])
  from given g where h.subject = g.subject and h.name = g.name and h.at = g.at and g.at >= %(hours_from)s
)
update ledger_days d set ms = d.ms + g.ms
from (select subject, name, date_trunc('day', at, 'UTC') as at, sum(ms)::bigint as ms from given group by 1, 2, 3) g
where d.subject = g.subject and d.name = g.name and d.at = g.at;

-- name: prune_ledger_minutes
-- The hour stays. `since`: from where on minutes are kept so far.
update ledger_hours set minutes = null where at >= %(since)s and at < %(before)s and minutes is not null;

-- name: prune_ledger_hours
delete from ledger_hours where at < %(before)s;
