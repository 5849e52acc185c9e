-- What a job of the queue is, in its place, so that a take of alike jobs reads none of their own rows.
-- kind: the digest of its spec, where nothing but that decides which host may take it and how it is written then: it has no
-- GPUs and no attempt yet, and is no member of an array or node of a workflow, nor preemptible. Null: its own row has to be
-- read. A server of an older version writes none.
alter table ready_jobs add column kind bytea;
