-- The jobs that Holdfast submits to run calls of functions: few, and looked for by the leader all the time.
create index jobs_executors on jobs (state, id) where spec ? 'executor';
