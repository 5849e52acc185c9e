-- Why the executor takes no calls beside the one of this batch that it runs: 'long', because that runs for long, or the
-- call that it waits for; '' where it takes more.
alter table call_batches add column busy text not null default '';
