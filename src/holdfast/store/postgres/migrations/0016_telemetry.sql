-- What hosts tell of their GPUs: the newest reading of each, and minutes and hours of each device.
create table host_telemetry (
  host_id text primary key,
  at      timestamptz not null,
  gpus    jsonb not null
) with (fillfactor = 50);

create table gpu_history (
  step                    text not null constraint gpu_history_step_check check (step in ('minute', 'hour')),
  host_id                 text not null,
  gpu                     integer not null,
  at                      timestamptz not null,
  samples                 integer not null check (samples >= 1),
  utilisation_samples     integer not null,
  utilisation_sum         double precision not null,
  utilisation_max         double precision,
  memory_used_max_bytes   bigint,
  memory_total_bytes      bigint not null,
  temperature_max_celsius double precision,
  primary key (step, host_id, gpu, at)
) with (fillfactor = 70);
create index gpu_history_at on gpu_history (step, at);
