-- The last event that the history has lost, one row. A reader that stopped before it has missed some (STORE-4).

create table events_pruned (
  one boolean primary key default true check (one),
  tx  xid8 not null default '0',
  id  bigint not null default 0
);
insert into events_pruned default values;

-- name: note_pruned_events
-- While their attempts say which batches the jobs' events are in.
update events_pruned p set tx = l.tx, id = l.id
from (
  (select e.tx, e.id from events e where e.job_id = any(%(ids)s) order by e.tx desc, e.id desc limit 1)
  union all
  (select x.tx, x.id from batched_events x
   where x.job_id = any(%(ids)s) and x.n = any(array(
     select unnest(array[a.taken_batch, a.ended_batch]) from attempts a where a.job_id = any(%(ids)s)))
   order by x.tx desc, x.id desc limit 1)
  order by tx desc, id desc limit 1
) l
where (l.tx, l.id) > (p.tx, p.id);

-- name: find_pruned_event
select tx::text, id from events_pruned;
