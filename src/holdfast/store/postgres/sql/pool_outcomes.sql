-- How spawns ended, for the breaker.

create table pool_outcomes (
  id     bigint generated always as identity primary key,
  pool   text not null,
  offer  text not null,
  at     timestamptz not null,
  fault  text not null default '', -- '': the host served
  reason text not null default ''  -- the provider's words
);
create index pool_outcomes_at on pool_outcomes (at);

-- name: forget_pool_outcomes
delete from pool_outcomes where pool = %(name)s;

-- name: insert_outcome
insert into pool_outcomes (pool, offer, at, fault, reason) values (%(pool)s, %(offer)s, %(now)s, %(fault)s, %(reason)s);

-- name: snapshot_outcomes
select pool, offer, fault, reason, greatest(0, extract(epoch from %(now)s::timestamptz - at))::double precision as age_seconds
from pool_outcomes where at > %(now)s::timestamptz - %(seconds)s * interval '1 second'
order by id desc;

-- name: prune_outcomes
delete from pool_outcomes where at < %(before)s;
