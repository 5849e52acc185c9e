-- Posts that were taken out of the outbox because they could not be processed. For people: no statement reads it.

create table workflow_set_aside (
  n     bigint primary key,
  run   text not null,
  node  integer not null,
  kind  text not null,
  ref   text not null,
  tries integer not null,
  error text not null,
  at    timestamptz not null
);

-- name: keep_set_aside
insert into workflow_set_aside (n, run, node, kind, ref, tries, error, at)
values (%(n)s, %(run)s, %(node)s, %(kind)s, %(ref)s, %(tries)s, %(error)s, %(now)s)
on conflict do nothing;
