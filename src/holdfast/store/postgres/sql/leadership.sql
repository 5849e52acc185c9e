-- The lead, one row. One replica leads, and its lead runs out unless it renews it. `number` grows with every change of leader. It
-- is the key of the row, so that a change of leader waits for the transactions of the old one that have passed `check_lead`: a
-- renewal leaves the key alone and waits for nothing.

create table leadership (
  number     bigint primary key,
  holder     text not null,
  expires_at timestamptz not null
);
insert into leadership (number, holder, expires_at) values (0, '', '-infinity');

-- LEAD-3, called as the last statement of a leader's transaction. One that wrote nothing needs no lead.
create function check_lead(held bigint, at timestamptz) returns void language plpgsql as $$
begin
  if pg_current_xact_id_if_assigned() is null then
    return;
  end if;
  perform 1 from leadership where number = held and expires_at > coalesce(at, clock_timestamp()) for key share;
  if not found then
    raise exception 'another replica leads';
  end if;
end
$$;

-- name: take_lead
-- By its holder at once, because a holder that asks anew has lost sight of its lead; by others when it has run out.
update leadership set number = number + 1, holder = %(holder)s,
  expires_at = coalesce(%(now)s::timestamptz, clock_timestamp()) + make_interval(secs => %(seconds)s)
where holder = %(holder)s or expires_at <= coalesce(%(now)s::timestamptz, clock_timestamp())
returning number;

-- name: renew_lead
-- A lead that ran out is not renewed, even if no other replica took it: its holder begins anew (LEASE-4).
update leadership set expires_at = coalesce(%(now)s::timestamptz, clock_timestamp()) + make_interval(secs => %(seconds)s)
where number = %(number)s and expires_at > coalesce(%(now)s::timestamptz, clock_timestamp())
returning number;

-- name: give_lead_back
update leadership set expires_at = '-infinity' where number = %(number)s;
