-- Output that a reader waits for from the host that ran the task. Gone after a crash: readers ask again.
create unlogged table log_reads (
  id       text primary key,
  host_id  text not null,
  "order"  jsonb not null,
  asked_at timestamptz not null default clock_timestamp(),
  at       bigint,
  data     bytea,
  reason   text
);
create index log_reads_waiting on log_reads (host_id) where at is null;
