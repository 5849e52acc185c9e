-- Output that a reader waits for from the host that ran the task. Gone after a crash of the server: readers ask again.

create unlogged table log_reads (
  id       text primary key,
  host_id  text not null,
  "order"  jsonb not null,
  asked_at timestamptz not null default clock_timestamp(),
  at       bigint, -- where the answer begins; null: there is none yet
  data     bytea,
  reason   text
);
create index log_reads_waiting on log_reads (host_id) where at is null;

-- name: ask_log_read
with old as (
  delete from log_reads where asked_at < coalesce(%(now)s::timestamptz, clock_timestamp()) - %(seconds)s * interval '1 second'
)
insert into log_reads (id, host_id, "order", asked_at)
values (%(id)s, %(host_id)s, %(order)s::jsonb, coalesce(%(now)s::timestamptz, clock_timestamp()));

-- name: list_log_reads
select "order" from log_reads where host_id = %(host_id)s and at is null order by asked_at, id limit 16;

-- name: answer_log_read
update log_reads set at = %(at)s, data = %(data)s, reason = %(reason)s
where id = %(id)s and host_id = %(host_id)s and at is null;

-- name: take_log_read
delete from log_reads where id = %(id)s and (at is not null or %(give_up)s::boolean)
returning id, at, data, reason;
