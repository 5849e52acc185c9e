-- Calls that back off, one by one.

create table call_waiting (
  set_n    bigint not null,
  index    integer not null,
  due_at   timestamptz not null,
  feed     bigint not null,
  rank     smallint not null,
  ord      bigint not null,
  page     integer not null,
  attempts smallint not null,
  held     boolean not null default false, -- by a kill switch, which is asked again when it is due
  primary key (set_n, index)
);
create index call_waiting_due on call_waiting (due_at);

-- name: insert_call_waiting
insert into call_waiting (set_n, index, due_at, feed, rank, ord, page, attempts, held)
select * from unnest(%(sets)s::bigint[], %(indices)s::integer[], %(dues)s::timestamptz[], %(feeds)s::bigint[],
  %(ranks)s::smallint[], %(ords)s::bigint[], %(pages)s::integer[], %(attempts)s::smallint[], %(held)s::boolean[]);

-- name: lock_due_calls
select set_n, index as first, index + 1 as last, page, rank, ord, attempts, 0::double precision as since, feed, held
from call_waiting where due_at <= %(now)s order by due_at limit %(limit)s for update skip locked;

-- name: find_due_call
select min(due_at) as due_at from call_waiting;

-- name: delete_call_waiting
-- They are locked.
delete from call_waiting where ctid = any(array(
  select t.ctid from unnest(%(sets)s::bigint[], %(indices)s::integer[]) as g(set_n, index)
  cross join lateral (select ctid from call_waiting w where w.set_n = g.set_n and w.index = g.index limit 1) t));

-- name: defer_held_calls
update call_waiting set due_at = %(until)s where ctid = any(array(
  select t.ctid from unnest(%(sets)s::bigint[], %(indices)s::integer[]) as g(set_n, index)
  cross join lateral (select ctid from call_waiting w where w.set_n = g.set_n and w.index = g.index limit 1) t));

-- name: lock_waiting_of_set
select set_n, index as first, index + 1 as last, page, rank, ord, attempts, 0::double precision as since
from call_waiting where set_n = %(n)s for update;

-- name: lock_free_waiting_of_set
select set_n, index as first, index + 1 as last, page, rank, ord, attempts, 0::double precision as since
from call_waiting where set_n = %(n)s for update skip locked;

-- name: read_waiting_call
select due_at, attempts from call_waiting where set_n = %(n)s and index = %(index)s;
