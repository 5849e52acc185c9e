-- Nodes of workflows. A node's row changes three or four times, and no index depends on what changes.
-- after: workflow_runs

create table workflow_nodes (
  run        text not null references workflow_runs on delete cascade,
  number     integer not null,
  name       text not null,
  kind       text not null constraint workflow_nodes_kind_check check (kind in ('call', 'map', 'job', 'ask')),
  state      text not null constraint workflow_nodes_state_check
             check (state in ('waiting', 'ready', 'started', 'succeeded', 'skipped', 'failed', 'cancelled')),
  waiting_on integer not null check (waiting_on >= 0), -- parents that have not ended
  ref        text, -- its call set or job
  rounds     integer not null default 0,
  spec       text not null,
  result     text,
  reason     text not null default '',
  started_at timestamptz,
  ended_at   timestamptz,
  primary key (run, number)
) with (fillfactor = 60);
create unique index workflow_nodes_name on workflow_nodes (run, name);

-- name: insert_nodes
insert into workflow_nodes (run, number, name, kind, state, waiting_on, ref, rounds, spec)
select %(run)s, g.* from unnest(
  %(numbers)s::integer[], %(names)s::text[], %(kinds)s::text[], %(states)s::text[], %(waits)s::integer[],
  %(refs)s::text[], %(rounds)s::integer[], %(specs)s::text[]) as g;

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

-- name: write_nodes
update workflow_nodes n set state = x.state, waiting_on = x.waiting_on, ref = x.ref, rounds = x.rounds,
       result = case when x.state in ('succeeded', 'skipped') then x.result end, reason = x.reason,
       started_at = x.started_at, ended_at = x.ended_at
from jsonb_to_recordset(%(rows)s::jsonb) as x(
  number integer, state text, waiting_on integer, ref text, rounds integer, result text, reason text,
  started_at timestamptz, ended_at timestamptz)
where n.run = %(run)s and n.number = x.number;
