-- Posts: what runs of workflows are to hear. Written in the transaction of the end that it tells, deleted when it is carried out.

create table workflow_outbox (
  n      bigint generated always as identity primary key,
  run    text not null,
  node   integer not null,
  kind   text not null,
  ref    text not null,
  tries  smallint not null default 0,
  due_at timestamptz not null,
  error  text -- of the last try
);
create index workflow_outbox_run on workflow_outbox (run, due_at, n);

-- name: write_posts
-- The recordset keeps the array's order.
insert into workflow_outbox (run, node, kind, ref, due_at)
select x.run, x.node, x.kind, x.ref, coalesce(x.due_at, %(now)s)
from jsonb_to_recordset(%(rows)s::jsonb) as x(run text, node integer, kind text, ref text, due_at timestamptz);

-- name: take_posts
-- What this call deletes, it processes, in the same transaction (POST-1).
delete from workflow_outbox where run = %(run)s and n = any(%(numbers)s::bigint[]) returning n;

-- name: read_outbox
-- The runs by skipping through the index, then the oldest posts of each: neither a large run nor posts that are not
-- due keep others waiting.
with recursive runs as (
  (select run, 1 as count from workflow_outbox order by run limit 1)
  union all
  select (select o.run from workflow_outbox o where o.run > r.run order by o.run limit 1), r.count + 1
  from runs r where r.run is not null and r.count < %(scan)s
), due as (
  select r.run, (select o.due_at from workflow_outbox o where o.run = r.run order by o.due_at limit 1) as first from runs r
  where r.run is not null
), chosen as (
  select run from due where first <= %(now)s order by first limit %(runs)s
)
select o.n, o.run, o.node, o.kind, o.ref, o.tries, o.due_at, o.error
from chosen c cross join lateral (
  select * from workflow_outbox x where x.run = c.run and x.due_at <= %(now)s order by x.due_at, x.n limit %(rows)s
) o
order by o.run, o.n;

-- name: postpone_post
update workflow_outbox set tries = tries + %(tries)s, error = %(error)s, due_at = %(due_at)s where n = %(n)s;
