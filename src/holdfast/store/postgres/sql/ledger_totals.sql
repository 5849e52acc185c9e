-- The ledger's milliseconds × devices by name, of time whose names change no more, for metrics. A few rows.

create table ledger_totals (
  unit text not null,
  name text not null,
  ms   bigint not null,
  primary key (unit, name)
);

-- name: add_ledger_totals
insert into ledger_totals (unit, name, ms)
select g.unit, g.name, g.ms from unnest(%(units)s::text[], %(names)s::text[], %(ms)s::bigint[]) as g(unit, name, ms)
order by 1, 2
on conflict (unit, name) do update set ms = ledger_totals.ms + excluded.ms;

-- name: read_ledger_totals
select unit, name, ms from ledger_totals;

-- name: read_ledger_open
-- Of jobs that run: what the totals get when they end, under names that may still change.
select s.unit, d.name, sum(d.ms)::bigint as ms
from ledger_subjects s join ledger_days d on d.subject = s.id
where not s.settled group by 1, 2;
