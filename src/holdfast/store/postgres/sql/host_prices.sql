-- What an hour of each host costs, by its name, as it was last seen: kept when the host is gone, because the ledger names
-- it for longer. The leader writes it (`core.report.money`).

create table host_prices (
  host          text primary key,
  gpu_hour_usd  double precision, -- of one GPU; null: the cluster's setting holds
  slot_hour_usd double precision, -- of one CPU slot; null: it costs nothing
  written_at    timestamptz not null
);

-- name: read_price_grounds
-- Of two hosts of one name, the one that is there.
select distinct on (h.name) h.name as host, jsonb_array_length(h.gpus) as gpus, h.cpu_slots, h.labels, i.usd_per_hour
from hosts h left join instances i on i.host_id = h.id
order by h.name, h.state = 'terminated', h.registered_at desc;

-- name: read_host_prices
select host, gpu_hour_usd, slot_hour_usd from host_prices order by host;

-- name: write_host_prices
-- Only what changed, because this is looked at every minute.
insert into host_prices (host, gpu_hour_usd, slot_hour_usd, written_at)
select x.host, x.gpu_hour_usd, x.slot_hour_usd, %(now)s
from jsonb_to_recordset(%(rows)s::jsonb) as x(host text, gpu_hour_usd double precision, slot_hour_usd double precision)
on conflict (host) do update
set gpu_hour_usd = excluded.gpu_hour_usd, slot_hour_usd = excluded.slot_hour_usd, written_at = excluded.written_at
where (host_prices.gpu_hour_usd, host_prices.slot_hour_usd)
  is distinct from (excluded.gpu_hour_usd, excluded.slot_hour_usd);
