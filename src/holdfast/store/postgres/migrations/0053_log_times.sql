-- When the controller was given the bytes, for readers that ask for times.
alter table log_chunks add column at timestamptz not null default now();
