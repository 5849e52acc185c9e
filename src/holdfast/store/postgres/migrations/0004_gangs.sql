-- Gangs: the start barrier, what each rank was charged, preemption, checkpoints.

alter table jobs add column rank_charges jsonb not null default '{}'; -- rank → {"retries": n, "watchdog": n, "infra": n}
alter table jobs add column start_failures integer not null default 0 check (start_failures >= 0);
alter table jobs add column preemptible boolean not null default false;
create index jobs_preemptible on jobs (priority) where preemptible and state in ('reserved', 'running');

-- `barrier` is true from the start for a task that runs alone; a gang's opens when every rank was claimed.
alter table tasks add column barrier boolean not null default true;
alter table tasks add column claimed_at timestamptz;
alter table tasks add column port integer check (port between 1 and 65535);

alter table hosts add column drain_deadline timestamptz;
alter table hosts add constraint hosts_deadline_while_draining check (drain_deadline is null or state = 'draining');

-- What a task left for the attempt after it. The bytes are in the blob store under `blob`; a row is written only when
-- they are all there and their checksum is right, so a torn upload never replaces a good one.
create table checkpoints (
  job_id     text not null,
  rank       integer not null check (rank >= 0),
  number     bigint not null check (number >= 1), -- grows with every checkpoint of the rank
  epoch      bigint not null check (epoch >= 1),
  attempt    integer not null check (attempt >= 1),
  step       bigint,
  size       bigint not null check (size >= 0),
  sha256     bytea not null check (octet_length(sha256) = 32),
  blob       text not null,
  created_at timestamptz not null,
  primary key (job_id, rank, number)
);
