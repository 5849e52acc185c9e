-- Secrets of nodes' jobs, kept apart from the nodes, which are shown. A restart needs them, so they live as long as
-- their run.
create table workflow_secrets (
  run     text not null references workflow_runs on delete cascade,
  number  integer not null,
  secrets jsonb not null,
  primary key (run, number)
);
