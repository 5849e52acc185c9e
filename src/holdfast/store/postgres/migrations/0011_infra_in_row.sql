-- Infrastructure failures in a row, after the second of which a job backs off (BUDGET-6).
alter table jobs add column infra_in_row integer not null default 0 check (infra_in_row >= 0);
