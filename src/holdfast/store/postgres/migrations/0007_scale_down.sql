-- A host that is scaled down is drained like any other; what is stopped there says so, also when a deadline comes first.
alter table hosts add column drain_cause text not null default 'host_drained' check (drain_cause in ('host_drained', 'scaled_down'));
