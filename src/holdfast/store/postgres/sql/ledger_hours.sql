-- The ledger by the hour: milliseconds × devices of each subject by name, kept for ninety days. Its one writer is `add_ledger_rows`.

create table ledger_hours (
  subject bigint not null,
  at      timestamptz not null,
  name    text not null,
  ms      bigint not null check (ms >= 0),
  primary key (subject, name, at)
) with (fillfactor = 85);
create index ledger_hours_at on ledger_hours (at);
