-- What a part of a host cannot do now, in its own words, and what enforces memory limits there.
alter table hosts add column faults jsonb not null default '[]', add column memory_limits text not null default '';
