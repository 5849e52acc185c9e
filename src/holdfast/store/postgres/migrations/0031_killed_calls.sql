-- Running calls that are ended at once, without their grace (positions, like those in `cancelled`, which has them, too).
alter table call_batches add column killed jsonb not null default '[]';
