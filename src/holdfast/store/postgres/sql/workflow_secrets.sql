-- Secrets of nodes' jobs, apart from the nodes, which are shown. A restart needs them, so they live as long as their run.
-- after: workflow_runs

create table workflow_secrets (
  run     text not null references workflow_runs on delete cascade,
  number  integer not null,
  secrets jsonb not null,
  primary key (run, number)
);

-- name: insert_node_secrets
insert into workflow_secrets (run, number, secrets)
select %(run)s, g.* from jsonb_to_recordset(%(rows)s::jsonb) as g(number integer, secrets jsonb);

-- name: read_node_secrets
select number, secrets from workflow_secrets where run = %(run)s and number = any(%(numbers)s::integer[]);
