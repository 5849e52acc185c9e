-- What each cycle of a pool saw and did, the last few.

create table pool_cycles (
  pool    text not null,
  id      bigint generated always as identity,
  summary jsonb not null,
  primary key (pool, id)
);

-- name: forget_pool_cycles
delete from pool_cycles where pool = %(name)s;

-- name: record_cycle
insert into pool_cycles (pool, summary) values (%(pool)s, %(summary)s::jsonb);

-- name: trim_cycles
delete from pool_cycles where pool = %(pool)s and id <= (
  select id from pool_cycles where pool = %(pool)s order by id desc offset %(keep)s limit 1);

-- name: list_cycles
select summary from pool_cycles where pool = %(pool)s order by id desc limit %(limit)s;
