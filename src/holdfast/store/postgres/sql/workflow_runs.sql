-- Runs of workflows. Every move of a run holds its row, so the moves of one run follow one another.

create table workflow_runs (
  id          text primary key,
  name        text not null,
  owner       text not null default '',
  project     text not null,
  state       text not null constraint workflow_runs_state_check
              check (state in ('running', 'failing', 'cancelling', 'succeeded', 'failed', 'cancelled')),
  reason      text not null default '',
  on_failure  text not null constraint workflow_runs_on_failure_check
              check (on_failure in ('cancel_queued', 'cancel_all', 'continue')),
  nodes       integer not null check (nodes >= 1),
  unended     integer not null check (unended between 0 and nodes),
  failed_node integer, -- the first
  out_dir     text not null default '',
  labels      jsonb not null default '{}',
  spec_hash   bytea not null,
  created_at  timestamptz not null,
  ended_at    timestamptz,
  constraint workflow_runs_ended_check check ((unended = 0) = (state in ('succeeded', 'failed', 'cancelled')))
) with (fillfactor = 70);
create index workflow_runs_ended on workflow_runs (ended_at) where ended_at is not null;

-- name: insert_run
insert into workflow_runs (id, name, owner, project, state, on_failure, nodes, unended, out_dir, labels, spec_hash, created_at)
values (%(id)s, %(name)s, %(owner)s, %(project)s, 'running', %(on_failure)s, %(nodes)s, %(nodes)s, %(out_dir)s, %(labels)s::jsonb,
        decode(%(spec_hash)s, 'hex'), %(now)s)
on conflict do nothing
returning id;

-- name: read_run_hash
select encode(spec_hash, 'hex') as spec_hash from workflow_runs where id = %(id)s;

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

-- name: lock_run
-- Every move of a run holds its row, so the moves of one run follow one another.
select id, name, project, state, reason, on_failure, nodes, unended, failed_node, ended_at
from workflow_runs where id = %(id)s for update;

-- name: write_run
update workflow_runs set state = %(state)s, reason = %(reason)s, unended = %(unended)s, failed_node = %(failed_node)s,
       ended_at = %(ended_at)s
where id = %(id)s;

-- name: prune_runs
with old as (
  select id from workflow_runs where ended_at < %(before)s order by ended_at limit %(limit)s
), posts as (
  delete from workflow_outbox o using old where o.run = old.id
)
delete from workflow_runs r using old where r.id = old.id returning r.id;
