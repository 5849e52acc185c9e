-- What names a bundle, and keeps it: the outputs, jobs, arrays, schedules, workflows and call sets on record.
-- after: outputs, jobs, arrays, schedules, workflow_nodes, call_sets

create view bundle_references as
select project, spec->'code'->>'digest' as digest from jobs where spec ? 'code'
union all
select project, spec->'code'->>'digest' from arrays where spec ? 'code'
union all
select project, spec->'job'->'code'->>'digest' from schedules where spec->'job' ? 'code'
union all
select s.project, s.spec->'code'->>'digest' from call_sets s where s.spec ? 'code'
union all
select coalesce(w.spec->>'project', 'default'), w.spec #>> '{code,digest}'
from workflow_nodes n
cross join lateral (select coalesce(n.spec::jsonb #> '{job,spec}', n.spec::jsonb #> '{call,spec}') as spec) w
where n.kind in ('job', 'call', 'map') and n.spec like '%"code":%'
union all
select j.project, o.digest from outputs o join jobs j on j.id = o.job_id where o.digest <> '';
