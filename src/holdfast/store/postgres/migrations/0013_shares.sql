-- Shares: the top of each project in each queue, found without the jobs of others ahead of it.
drop index jobs_of_project;
create index jobs_of_project on jobs (project, state, queue, priority desc, ord) where state in ('waiting', 'queued');
