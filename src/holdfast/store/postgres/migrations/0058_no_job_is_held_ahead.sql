-- A host takes jobs for its free slots alone, so no task waits for a slot of its host.
alter table tasks drop column ahead;
alter table tasks drop column recalled;
update queues set settings = settings - 'run_ahead_seconds' where settings ? 'run_ahead_seconds';
update cluster set settings = settings - 'run_ahead_seconds' where settings ? 'run_ahead_seconds';
