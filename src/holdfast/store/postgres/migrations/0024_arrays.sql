-- Arrays: one submission, many jobs.

create table arrays (
  id              text primary key,
  name            text not null,
  project         text not null,
  queue           text not null,
  spec            jsonb not null, -- as it was submitted, without the values of secrets
  spec_hash       bytea not null,
  idempotency_key text,
  indices         text not null,
  size            integer not null check (size >= 1),
  at_once         integer check (at_once >= 1),
  held            text not null default '', -- what all of it waits for
  lined           boolean not null default false, -- members may wait in line
  awaited         boolean not null default false,
  cancel_reason   text, -- while its members are being cancelled
  cancel_cause    text constraint arrays_cancel_cause_check check (cancel_cause in ('user_cancelled', 'dependency')),
  cancel_hard     boolean not null default false,
  created_at      timestamptz not null,
  constraint arrays_cancel_says_why check ((cancel_reason is null) = (cancel_cause is null))
);
create unique index arrays_idempotency on arrays (project, idempotency_key) where idempotency_key is not null;
create index arrays_lined on arrays (id) where lined;
create index arrays_cancelling on arrays (id) where cancel_reason is not null;
create index arrays_awaited on arrays (id) where awaited;

alter table jobs add column array_id text;
alter table jobs add column array_index integer check (array_index >= 0);
alter table jobs add constraint jobs_array_index check ((array_id is null) = (array_index is null));
-- None of these costs a job anything that is of no array.
create unique index jobs_of_array on jobs (array_id, array_index) where array_id is not null;
create index jobs_array_state on jobs (array_id, state) where array_id is not null;
create index jobs_array_active on jobs (array_id)
  where array_id is not null and ended_at is null and (wait_cause is null or wait_cause not in ('array', 'parked'));
create index jobs_in_line on jobs (array_id, array_index) where wait_cause = 'array';
