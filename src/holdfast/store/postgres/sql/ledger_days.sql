-- The ledger by the day: milliseconds × devices of each subject by name, kept for ever. Its one writer is `add_ledger_rows`.

create table ledger_days (
  subject bigint not null,
  at      timestamptz not null,
  name    text not null,
  ms      bigint not null check (ms >= 0),
  primary key (subject, name, at)
) with (fillfactor = 85);
create index ledger_days_at on ledger_days (at);
