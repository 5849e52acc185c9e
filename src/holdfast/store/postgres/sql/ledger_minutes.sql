-- The ledger by the minute: milliseconds × devices of each subject by name, kept for two days. Its one writer is `add_ledger_rows`.

create table ledger_minutes (
  subject bigint not null,
  at      timestamptz not null,
  name    text not null,
  ms      bigint not null check (ms >= 0),
  primary key (subject, name, at)
) with (fillfactor = 85);
create index ledger_minutes_at on ledger_minutes (at);

-- name: add_ledger_rows
-- Adds to the minutes, and what it adds to their hours and days with them, so that the three always sum to the same.
-- Minutes and hours that are pruned already are left out: a correction of an old name reaches only what is kept.
with given as (
  select g.subject, g.at, g.name, sum(g.ms)::bigint as ms
  from unnest(%(subjects)s::bigint[], %(ats)s::timestamptz[], %(names)s::text[], %(ms)s::bigint[]) as g(subject, at, name, ms)
  group by 1, 2, 3
), minutes as (
  insert into ledger_minutes (subject, at, name, ms)
  select subject, at, name, ms from given where at >= %(minutes_from)s order by subject, name, at
  on conflict (subject, name, at) do update set ms = ledger_minutes.ms + excluded.ms
), hours as (
  insert into ledger_hours (subject, at, name, ms)
  select subject, date_trunc('hour', at, 'UTC'), name, sum(ms) from given
  where date_trunc('hour', at, 'UTC') >= %(hours_from)s group by 1, 2, 3 order by 1, 3, 2
  on conflict (subject, name, at) do update set ms = ledger_hours.ms + excluded.ms
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
  select m.subject, m.at, m.name, m.ms from asked a join ledger_minutes m on m.subject = a.subject and m.name = a.name
  union all
  select h.subject, h.at, h.name, h.ms from asked a join ledger_hours h on h.subject = a.subject and h.name = a.name
  where h.at < %(minutes_from)s
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

-- name: prune_ledger_minutes
delete from ledger_minutes where at < %(before)s;

-- name: prune_ledger_hours
delete from ledger_hours where at < %(before)s;

-- name: subtract_ledger_rows
-- The part of a correction that takes away; `add_ledger_rows` gives it its other name.
with given as (
  select g.subject, g.at, g.name, sum(g.ms)::bigint as ms
  from unnest(%(subjects)s::bigint[], %(ats)s::timestamptz[], %(names)s::text[], %(ms)s::bigint[]) as g(subject, at, name, ms)
  group by 1, 2, 3
), minutes as (
  update ledger_minutes m set ms = m.ms - g.ms from given g where m.subject = g.subject and m.name = g.name and m.at = g.at
    and g.at >= %(minutes_from)s
), hours as (
  update ledger_hours h set ms = h.ms - g.ms
  from (select subject, name, date_trunc('hour', at, 'UTC') as at, sum(ms)::bigint as ms from given group by 1, 2, 3) g
  where h.subject = g.subject and h.name = g.name and h.at = g.at and g.at >= %(hours_from)s
)
update ledger_days d set ms = d.ms - g.ms
from (select subject, name, date_trunc('day', at, 'UTC') as at, sum(ms)::bigint as ms from given group by 1, 2, 3) g
where d.subject = g.subject and d.name = g.name and d.at = g.at;
