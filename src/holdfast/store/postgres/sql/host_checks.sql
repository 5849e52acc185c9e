-- Checks of hosts: what their agents found.

create table host_checks (
  host_id     text not null,
  number      text not null, -- the order's; a report that is repeated is one
  incarnation text not null,
  at          timestamptz not null,
  kind        text not null constraint host_checks_kind_check check (kind in ('preflight', 'periodic', 'failures')),
  verdict     text not null constraint host_checks_verdict_check check (verdict in ('ok', 'warn', 'fail')),
  message     text not null default '',
  results     jsonb not null default '[]',
  measured    jsonb not null default '{}',
  primary key (host_id, number)
);
create index host_checks_newest on host_checks (host_id, at desc);
create index host_checks_at on host_checks (at);

-- name: insert_check
-- An agent that did not hear the answer reports again under the same number.
insert into host_checks (host_id, number, incarnation, at, kind, verdict, message, results, measured)
values (%(host_id)s, %(number)s, %(incarnation)s, %(at)s, %(kind)s, %(verdict)s, %(message)s, %(results)s, %(measured)s)
on conflict (host_id, number) do nothing;

-- name: read_check_state
select h.state,
  exists (select from host_checks c where c.host_id = h.id and c.incarnation = %(incarnation)s
    and c.kind = 'preflight') as preflighted,
  extract(epoch from %(now)s::timestamptz - coalesce(c.at, h.registered_at))::double precision as last_check_seconds,
  (select count(*) from host_failures f where f.host_id = h.id
    and f.at > coalesce(c.at, '-infinity'::timestamptz))::integer as failed_since
from hosts h
left join lateral (select at from host_checks c where c.host_id = h.id order by at desc limit 1) c on true
where h.id = %(id)s;

-- name: list_checks
select number, incarnation, at, kind, verdict, message, results, measured from host_checks
where host_id = %(host_id)s order by at desc, number limit %(limit)s;

-- name: prune_checks
delete from host_checks where at < %(before)s;

-- name: snapshot_checks
-- What hosts that are not active yet show of themselves, and the last verdict of this incarnation's checks.
select distinct on (h.id) h.id as host_id, h.cpu_slots, h.memory_bytes, h.gpus, c.verdict, c.message
from instances i join hosts h on h.id = i.host_id join heartbeats b on b.host_id = i.host_id
left join host_checks c on c.host_id = h.id and c.kind = 'preflight' and c.incarnation = b.incarnation
where h.state = 'preflight'
order by h.id, c.at desc;
