-- What a call's budgets were charged, from its first failure until it is tried anew by a person.

create table call_charges (
  set_n   bigint not null,
  index   integer not null,
  charges jsonb not null,
  primary key (set_n, index)
);

-- name: read_call_charges
select c.set_n, c.index, c.charges
from unnest(%(sets)s::bigint[], %(indices)s::integer[]) as g(set_n, index)
cross join lateral (select * from call_charges c where c.set_n = g.set_n and c.index = g.index limit 1) c;

-- name: put_call_charges
insert into call_charges (set_n, index, charges)
select g.set_n, g.index, g.charges::jsonb
from unnest(%(sets)s::bigint[], %(indices)s::integer[], %(charges)s::text[]) as g(set_n, index, charges)
on conflict (set_n, index) do update set charges = excluded.charges;

-- name: delete_call_charges
-- Their set is locked.
delete from call_charges where ctid = any(array(
  select t.ctid from unnest(%(firsts)s::integer[], %(lasts)s::integer[]) as g(first, last)
  cross join lateral (
    select ctid from call_charges c where c.set_n = %(n)s and c.index >= g.first and c.index < g.last offset 0
  ) t));

-- name: prune_call_charges
delete from call_charges where set_n = any(%(sets)s);
