-- The lead: one row (migration 10).

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
