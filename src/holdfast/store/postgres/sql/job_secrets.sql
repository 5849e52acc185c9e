-- The values of jobs' secrets, apart from the jobs, which are shown.

create table job_secrets (
  job_id  text primary key,
  secrets jsonb not null
);

-- name: read_offered_secrets
-- As read_offered_jobs.
select s.job_id, s.secrets from job_secrets s
where s.job_id = any(array(
  select t.job_id from tasks t
  join unnest(%(hosts)s::text[], %(incarnations)s::text[]) as g(host_id, incarnation)
    on g.host_id = t.host_id and g.incarnation = t.incarnation
  where t.host_id = any(%(hosts)s::text[]) and t.state = 'reserved' and t.barrier));

-- name: prune_secrets
delete from job_secrets where job_id = any(%(ids)s);
