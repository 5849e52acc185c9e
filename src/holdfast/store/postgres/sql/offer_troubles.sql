-- Refusals in a row that an offer met since it last brought a machine.

create table offer_troubles (
  pool     text not null,
  offer    text not null,
  refusals integer not null check (refusals >= 1),
  at       timestamptz not null,
  reason   text not null default '',
  primary key (pool, offer)
);

-- name: forget_pool_troubles
delete from offer_troubles where pool = %(name)s;

-- name: note_trouble
insert into offer_troubles (pool, offer, refusals, at, reason) values (%(pool)s, %(offer)s, 1, %(now)s, %(reason)s)
on conflict (pool, offer) do update set refusals = offer_troubles.refusals + 1, at = excluded.at, reason = excluded.reason;

-- name: clear_trouble
delete from offer_troubles where pool = %(pool)s and offer = %(offer)s;

-- name: snapshot_troubles
-- At any age, because the back-off counts from it.
select pool, offer, refusals, reason, greatest(0, extract(epoch from %(now)s::timestamptz - at))::double precision as age_seconds
from offer_troubles order by pool, offer;
