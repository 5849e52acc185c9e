-- Hosts take plain jobs by themselves: which road an attempt took, and what the leader has just passed over (TAKE-2).

alter table attempts add column road text not null default 'leader'
  constraint attempts_road_check check (road in ('leader', 'host'));

create table passed_over (
  id      smallint primary key default 1 check (id = 1),
  at      timestamptz not null default '-infinity',
  holds   boolean not null default true,
  job_ids text[] not null default '{}'
) with (fillfactor = 50);
insert into passed_over default values;
