-- Where in the logs of executors the outputs of calls begin: a row for the neighbours of one set in one append.
create table call_outputs (
  job_id       text not null,
  attempt      integer not null,
  rank         integer not null,
  stream       text not null,
  start        bigint not null,
  "end"        bigint not null,
  set_id       text not null,
  call_attempt integer not null,
  first        integer not null,
  last         integer not null,
  primary key (job_id, attempt, rank, stream, start, set_id, call_attempt),
  constraint call_outputs_span check (first < last and start < "end")
);
create index call_outputs_of_set on call_outputs (set_id, last);
