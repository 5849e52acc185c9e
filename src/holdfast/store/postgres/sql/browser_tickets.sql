-- Tickets with which a browser that is signed in opens one WebSocket, once. Only hashes are kept.

create table browser_tickets (
  secret_hash bytea primary key check (octet_length(secret_hash) = 32),
  sign_in_id  text not null,
  job_id      text not null,
  rank        integer not null,
  expires_at  timestamptz not null
);
create index browser_tickets_expiry on browser_tickets (expires_at);

-- name: insert_browser_ticket
insert into browser_tickets (secret_hash, sign_in_id, job_id, rank, expires_at)
values (%(secret_hash)s, %(sign_in_id)s, %(job_id)s, %(rank)s,
        coalesce(%(now)s::timestamptz, clock_timestamp()) + make_interval(secs => %(seconds)s))
returning expires_at;

-- name: spend_browser_ticket
-- The delete is the guard: of two WebSockets with one ticket, one gets the row.
delete from browser_tickets where secret_hash = %(secret_hash)s
returning sign_in_id, job_id, rank, expires_at > coalesce(%(now)s::timestamptz, clock_timestamp()) as good;

-- name: prune_browser_tickets
delete from browser_tickets where expires_at < coalesce(%(now)s, clock_timestamp());
