-- What an hour of a host costs, by its name, and from when on: kept when the host is gone, because the ledger names it for
-- longer. No row is changed or deleted: of two that hold at a time, the one that was written later counts (PRICE-4).

create table host_prices (
  id            bigint generated always as identity primary key,
  host          text not null, -- '': of a GPU of any host that names no price itself
  since         timestamptz, -- null: from the host's first second on
  gpu_hour_usd  double precision, -- of one GPU; null: the cluster's price holds
  slot_hour_usd double precision, -- of one CPU slot; null: it costs nothing
  by_hand       boolean not null default false, -- an operator corrected it; else a label, a provider or the setting says so
  written_at    timestamptz not null
);
create index host_prices_host on host_prices (host, id);

-- name: read_price_grounds
-- Of two hosts of one name, the one that is there.
select distinct on (h.name) h.name as host, jsonb_array_length(h.gpus) as gpus, h.cpu_slots, h.labels, i.usd_per_hour
from hosts h left join instances i on i.host_id = h.id
order by h.name, h.state = 'terminated', h.registered_at desc;

-- name: read_noted_prices
-- What the labels, the providers and the setting said last.
select distinct on (host) host, gpu_hour_usd, slot_hour_usd from host_prices where not by_hand order by host, id desc;

-- name: read_host_prices
select host, since, gpu_hour_usd, slot_hour_usd from host_prices order by id;

-- name: write_host_prices
insert into host_prices (host, since, gpu_hour_usd, slot_hour_usd, by_hand, written_at)
select x.host, x.since, x.gpu_hour_usd, x.slot_hour_usd, %(by_hand)s, %(now)s
from jsonb_to_recordset(%(rows)s::jsonb) as x(host text, since timestamptz, gpu_hour_usd double precision, slot_hour_usd double precision);
