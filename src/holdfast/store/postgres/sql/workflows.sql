-- Runs of workflows: written, moved under the run's lock, and read.

-- name: insert_run
insert into workflow_runs (id, name, owner, project, state, on_failure, nodes, unended, out_dir, labels, spec_hash, created_at)
values (%(id)s, %(name)s, %(owner)s, %(project)s, 'running', %(on_failure)s, %(nodes)s, %(nodes)s, %(out_dir)s, %(labels)s::jsonb,
        decode(%(spec_hash)s, 'hex'), %(now)s)
on conflict do nothing
returning id;

-- name: read_run_hash
select encode(spec_hash, 'hex') as spec_hash from workflow_runs where id = %(id)s;

-- name: insert_nodes
insert into workflow_nodes (run, number, name, kind, state, waiting_on, ref, rounds, spec)
select %(run)s, g.* from unnest(
  %(numbers)s::integer[], %(names)s::text[], %(kinds)s::text[], %(states)s::text[], %(waits)s::integer[],
  %(refs)s::text[], %(rounds)s::integer[], %(specs)s::text[]) as g;

-- name: insert_node_secrets
insert into workflow_secrets (run, number, secrets)
select %(run)s, g.* from jsonb_to_recordset(%(rows)s::jsonb) as g(number integer, secrets jsonb);

-- name: read_node_secrets
select number, secrets from workflow_secrets where run = %(run)s and number = any(%(numbers)s::integer[]);

-- name: insert_flow_edges
insert into workflow_edges (run, parent, child)
select %(run)s, g.* from unnest(%(parents)s::integer[], %(children)s::integer[]) as g;

-- name: read_run
select r.id, r.name, r.owner, r.project, r.state, r.reason, r.on_failure, r.nodes, r.unended, f.name as failed_node, r.out_dir,
       r.labels, r.created_at, r.ended_at
from workflow_runs r left join workflow_nodes f on f.run = r.id and f.number = r.failed_node
where r.id = %(id)s;

-- name: list_runs
select r.id, r.name, r.owner, r.project, r.state, r.reason, r.on_failure, r.nodes, r.unended, f.name as failed_node, r.out_dir,
       r.labels, r.created_at, r.ended_at
from workflow_runs r left join workflow_nodes f on f.run = r.id and f.number = r.failed_node
where (%(states)s::text[] is null or r.state = any(%(states)s))
  and (%(project)s::text is null or r.project = %(project)s)
  and (%(owner)s::text is null or r.owner = %(owner)s)
  and (%(name)s::text is null or r.name = %(name)s)
  and (%(before)s::text is null or r.id < %(before)s)
order by r.id desc
limit %(limit)s;

-- name: count_nodes
select state, count(*) from workflow_nodes where run = %(run)s group by state;

-- name: list_nodes
select n.run, n.number, n.name, n.kind, n.state, n.waiting_on, n.ref, n.reason, n.started_at, n.ended_at,
       array(select e.parent from workflow_edges e where e.run = n.run and e.child = n.number order by e.parent) as parents
from workflow_nodes n
where n.run = %(run)s and n.number > %(after)s
  and (%(states)s::text[] is null or n.state = any(%(states)s))
  and (%(name)s::text is null or n.name = %(name)s)
order by n.number
limit %(limit)s;

-- name: read_works
select number, name, kind, state, ref, rounds, spec, result, started_at
from workflow_nodes where run = %(run)s and number = any(%(numbers)s::integer[]);

-- name: read_parents
-- Only of parents, so that a node cannot read what it does not wait for.
select n.number, n.name, n.kind, n.state, n.ref, n.rounds, n.spec, n.result, n.started_at
from workflow_nodes n
where n.run = %(run)s and n.name = any(%(names)s::text[])
  and exists (select from workflow_edges e
              where e.run = n.run and e.parent = n.number and e.child = any(%(numbers)s::integer[]));

-- name: lock_run
-- Every move of a run holds its row, so the moves of one run follow one another.
select id, name, project, state, reason, on_failure, nodes, unended, failed_node, ended_at
from workflow_runs where id = %(id)s for update;

-- name: load_nodes
select number, name, kind, state, waiting_on, ref, rounds, result, reason, started_at, ended_at
from workflow_nodes where run = %(run)s and number = any(%(numbers)s::integer[]);

-- name: load_unended_nodes
-- Once or twice in a run: at its first failure, and at a cancel.
select number, name, kind, state, waiting_on, ref, rounds, null as result, reason, started_at, ended_at
from workflow_nodes
where run = %(run)s and (state in ('waiting', 'ready', 'started') or number = any(%(numbers)s::integer[]));

-- name: load_all_nodes
-- Without results, because a restart keeps or drops them whole: `write_nodes` leaves those it is not given.
select number, name, kind, state, waiting_on, ref, rounds, null as result, reason, started_at, ended_at
from workflow_nodes where run = %(run)s;

-- name: load_descendants
-- Through nodes that wait, because one that does not was cancelled with all below it.
with recursive below as (
  select number from workflow_nodes where run = %(run)s and number = any(%(numbers)s::integer[])
  union
  select e.child from below b
  join workflow_edges e on e.run = %(run)s and e.parent = b.number
  join workflow_nodes n on n.run = %(run)s and n.number = e.child and n.state = 'waiting'
)
select n.number, n.name, n.kind, n.state, n.waiting_on, n.ref, n.rounds, null as result, n.reason, n.started_at, n.ended_at
from below b join workflow_nodes n on n.run = %(run)s and n.number = b.number;

-- name: load_children
select parent, child from workflow_edges where run = %(run)s and parent = any(%(numbers)s::integer[]);

-- name: load_all_edges
select parent, child from workflow_edges where run = %(run)s;

-- name: write_run
update workflow_runs set state = %(state)s, reason = %(reason)s, unended = %(unended)s, failed_node = %(failed_node)s,
       ended_at = %(ended_at)s
where id = %(id)s;

-- name: write_nodes
update workflow_nodes n set state = x.state, waiting_on = x.waiting_on, ref = x.ref, rounds = x.rounds,
       result = case when x.state in ('succeeded', 'skipped') then x.result end, reason = x.reason,
       started_at = x.started_at, ended_at = x.ended_at
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  number integer, state text, waiting_on integer, ref text, rounds integer, result text, reason text,
  started_at timestamptz, ended_at timestamptz)
where n.run = %(run)s and n.number = x.number;

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

-- name: keep_set_aside
insert into workflow_set_aside (n, run, node, kind, ref, tries, error, at)
values (%(n)s, %(run)s, %(node)s, %(kind)s, %(ref)s, %(tries)s, %(error)s, %(now)s)
on conflict do nothing;

-- name: prune_runs
with old as (
  select id from workflow_runs where ended_at < %(before)s order by ended_at limit %(limit)s
), posts as (
  delete from workflow_outbox o using old where o.run = old.id
)
delete from workflow_runs r using old where r.id = old.id returning r.id;
