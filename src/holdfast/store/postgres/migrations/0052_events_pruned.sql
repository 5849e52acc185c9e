-- The last event that the history has lost. A reader that stopped before it has missed some (STORE-4).
create table events_pruned (
  one boolean primary key default true check (one),
  tx  xid8 not null default '0',
  id  bigint not null default 0
);
insert into events_pruned default values;
