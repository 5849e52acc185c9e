-- The jobs that a job submitted, by their parent. Few jobs have one.
create index jobs_children on jobs ((spec->>'parent')) where spec ? 'parent';
