-- Hosts that were quarantined by evidence.

create table host_asides (
  id       bigint generated always as identity primary key,
  host_id  text not null,
  -- jobs: time lets it back, on probation; checks: a check that passes.
  kind     text not null constraint host_asides_kind_check check (kind in ('jobs', 'checks')),
  at       timestamptz not null, -- since when, for people
  until    timestamptz not null,
  ended_at timestamptz -- null: it is aside
);
create unique index host_asides_open on host_asides (host_id) where ended_at is null;

-- name: end_lifted_asides
-- An operator's release lifts these decisions too.
update host_asides a set ended_at = %(now)s
from hosts h
where a.ended_at is null and h.id = a.host_id and h.state <> 'quarantined';

-- name: open_aside
insert into host_asides (host_id, kind, at, until)
values (%(host_id)s, %(kind)s, %(at)s, %(until)s)
on conflict (host_id) where ended_at is null do update
set kind = excluded.kind, at = excluded.at, until = excluded.until;

-- name: close_aside
update host_asides set ended_at = %(now)s where host_id = %(host_id)s and ended_at is null;

-- name: prune_asides
delete from host_asides where ended_at < %(before)s;
