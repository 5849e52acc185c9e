-- Links of sessions that a host has still to dial, and orders to it to end one. Gone after a crash of the server: users ask
-- again, and a host ends by itself what has no link for ten minutes.

create unlogged table session_links (
  id          text primary key,
  session_id  text not null,
  host_id     text not null,
  "order"     jsonb not null,
  ticket_hash bytea not null, -- SHA-256, empty in an order to end; the order alone has the ticket, and goes to its host alone
  replica     text not null, -- the address of the server at which the user waits
  asked_at    timestamptz not null default clock_timestamp(),
  told_at     timestamptz -- when its host was last told
);
create index session_links_waiting on session_links (host_id);

-- name: insert_session_link
with old as (
  delete from session_links where asked_at < coalesce(%(now)s::timestamptz, clock_timestamp())
    - case when ticket_hash = '' then interval '1 hour' else interval '60 seconds' end
)
insert into session_links (id, session_id, host_id, "order", ticket_hash, replica, asked_at)
values (%(id)s, %(session_id)s, %(host_id)s, %(order)s::jsonb, %(ticket_hash)s, %(replica)s,
        coalesce(%(now)s::timestamptz, clock_timestamp()))
on conflict (id) do nothing;

-- name: tell_session_links
-- Told again only where the host has not dialled for two seconds, because each answer that says something ends a poll.
update session_links set told_at = clock_timestamp()
where host_id = %(host_id)s and (told_at is null or told_at < clock_timestamp() - interval '2 seconds')
  and (ticket_hash = '' or asked_at > clock_timestamp() - interval '60 seconds')
returning "order";

-- name: find_session_replica
-- A look alone: the server at which the user waits spends the ticket.
select replica from session_links where id = %(id)s and host_id = %(host_id)s and ticket_hash = %(ticket_hash)s;

-- name: take_session_link
-- A ticket is good once: of two racers one gets the row.
delete from session_links
where id = %(id)s and host_id = %(host_id)s and ticket_hash = %(ticket_hash)s and replica = %(replica)s
returning session_id;

-- name: drop_session_link
delete from session_links where id = %(id)s;

-- name: drop_session_stop
-- The order to end a session was carried out.
delete from session_links where id = %(id)s and host_id = %(host_id)s;
