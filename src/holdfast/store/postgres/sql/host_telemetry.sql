-- The newest reading of each host's GPUs.

create table host_telemetry (
  host_id text primary key,
  at      timestamptz not null,
  gpus    jsonb not null
) with (fillfactor = 50);

-- name: write_latest
-- A reading is told with every sync until the next one is made, each time a little older: only one that is later than the
-- last by a second is new. Returns the hosts whose reading is.
insert into host_telemetry (host_id, at, gpus)
select g.host_id, g.at, g.gpus::jsonb
from unnest(%(hosts)s::text[], %(ats)s::timestamptz[], %(gpus)s::text[]) as g(host_id, at, gpus)
join hosts h on h.id = g.host_id
order by g.host_id
on conflict (host_id) do update set at = excluded.at, gpus = excluded.gpus
where excluded.at > host_telemetry.at + interval '1 second'
returning host_id;

-- name: read_latest
select host_id, at, gpus from host_telemetry where host_id = %(host_id)s;

-- name: prune_latest
-- Of hosts that are long gone.
delete from host_telemetry where at < %(hours)s;
