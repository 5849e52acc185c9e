-- The key of a host that was ended opens nothing, and tells its agent that it was ended.
alter table hosts add column ended_key_hash bytea;
create unique index hosts_ended_key on hosts (ended_key_hash) where ended_key_hash is not null;
