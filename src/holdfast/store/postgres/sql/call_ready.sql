-- Calls that are ready, by feed in the order in which they are handed out. An executor takes from the front, so it moves `first`
-- and leaves the key alone (HOT), or deletes the row.

create sequence call_order as bigint; -- the place of each submission among those of its feed and priority

create table call_ready (
  feed     bigint not null,
  rank     smallint not null, -- 100 - priority
  ord      bigint not null,
  set_n    bigint not null,
  last     integer not null,
  first    integer not null,
  page     integer not null, -- `first` of the page with its arguments
  attempts smallint not null default 0, -- of the calls in it so far
  since    timestamptz not null,
  primary key (feed, rank, ord, set_n, last),
  check (last > first)
) with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);

-- name: insert_call_ready
insert into call_ready (feed, rank, ord, set_n, last, first, page, attempts, since)
select g.feed, g.rank, g.ord, g.set_n, g.last, g.first, g.page, g.attempts, to_timestamp(g.since)
from json_to_recordset(%(rows)s::json) as g(feed bigint, rank smallint, ord bigint, set_n bigint, last integer, first integer,
  page integer, attempts smallint, since double precision);

-- name: delete_call_ready
-- They are locked.
delete from call_ready where ctid = any(array(
  select t.ctid from json_to_recordset(%(rows)s::json) as g(feed bigint, rank smallint, ord bigint, set_n bigint, last integer)
  cross join lateral (
    select ctid from call_ready r
    where r.feed = g.feed and r.rank = g.rank and r.ord = g.ord and r.set_n = g.set_n and r.last = g.last limit 1
  ) t));

-- name: lock_ready_of_set
-- A cancel's first look, which waits for claims that are under way.
select feed, set_n, first, last, page, rank, ord, attempts, extract(epoch from since)::double precision as since
from call_ready where feed = %(feed)s and rank = %(rank)s and set_n = %(n)s for update;

-- name: lock_free_ready_of_set
-- Its second, with the set locked: what was made ready meanwhile. A claim may hold one and wait for the set.
select feed, set_n, first, last, page, rank, ord, attempts, extract(epoch from since)::double precision as since
from call_ready where feed = %(feed)s and rank = %(rank)s and set_n = %(n)s for update skip locked;

-- name: read_ready_call
select feed, set_n, first, last, page, rank, ord, attempts, extract(epoch from since)::double precision as since
from call_ready where feed = %(feed)s and rank = %(rank)s and set_n = %(n)s and first <= %(index)s and last > %(index)s;

-- name: count_calls_ahead
-- Counted to a bound of ranges.
select sum(r.last - r.first)::integer from (
  select last, first from call_ready
  where feed = %(feed)s and (rank, ord, set_n, last) < (%(rank)s, %(ord)s, %(set_n)s, %(last)s)
  order by feed, rank, ord, set_n, last limit 10000
) r;
