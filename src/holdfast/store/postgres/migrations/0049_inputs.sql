-- What a job reads as its standard input is a value, which lives as long as a job names it.
create index jobs_inputs on jobs ((spec->>'stdin')) where spec ? 'stdin';
