-- Jobs that are being stopped count too: until they have gone, their room is held for whom they make it.
drop index jobs_preemptible;
create index jobs_preemptible on jobs (priority) where preemptible and state in ('reserved', 'running', 'draining');
