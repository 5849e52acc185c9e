-- The folder of the workflow node that a set belongs to.
alter table call_sets add column out_dir text not null default '';
