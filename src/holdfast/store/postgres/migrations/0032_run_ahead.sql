-- Jobs that a host holds beyond its slots, until one of them is free (AHEAD-1), and those of them that it is asked to
-- give back (AHEAD-2).
alter table tasks add column ahead boolean not null default false;
alter table tasks add column recalled boolean not null default false;
