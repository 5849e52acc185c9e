-- Work has an owner: the user of the token that submitted it, '' for work from before there were owners and for what
-- Holdfast submits itself. Adding a column with a constant rewrites no table.
alter table jobs add column owner text not null default '';
alter table jobs alter column owner set statistics 20; -- as its other columns (0039)
alter table arrays add column owner text not null default '';
alter table call_sets add column owner text not null default '';
alter table workflow_runs add column owner text not null default '';
alter table schedules add column owner text not null default '';
alter table tokens add column user_name text not null default '';
update tokens set user_name = name where role <> 'join';
