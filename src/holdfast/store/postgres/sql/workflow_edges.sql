-- Which nodes of a workflow wait for which.
-- after: workflow_runs

create table workflow_edges (
  run    text not null references workflow_runs on delete cascade,
  parent integer not null,
  child  integer not null,
  primary key (run, parent, child)
);
create index workflow_edges_child on workflow_edges (run, child, parent);

-- name: insert_flow_edges
insert into workflow_edges (run, parent, child)
select %(run)s, g.* from unnest(%(parents)s::integer[], %(children)s::integer[]) as g;

-- name: load_children
select parent, child from workflow_edges where run = %(run)s and parent = any(%(numbers)s::integer[]);

-- name: load_all_edges
select parent, child from workflow_edges where run = %(run)s;
