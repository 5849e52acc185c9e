-- The states that each host was in, one row a stretch, because the ledger names unleased time by them, also after a restart.
-- after: hosts

create table host_states (
  host_id   text not null,
  since     timestamptz not null,
  until     timestamptz, -- null: it is in this state
  state     text not null,
  gpus      integer not null,
  cpu_slots integer not null,
  host      text not null, -- its name
  pool      text not null
);
create index host_states_of_host on host_states (host_id, since);
create unique index host_states_open on host_states (host_id) where until is null;
create index host_states_ended on host_states (until) where until is not null;

-- A trigger, because a host's state changes with several statements, and a stretch that is missing would be time without a
-- name. It fires where the state or the devices really change, which is seldom.
create function keep_host_state() returns trigger language plpgsql as $$
declare
  at timestamptz := greatest(new.state_at, new.registered_at);
begin
  if tg_op = 'UPDATE' then
    update host_states s set until = greatest(s.since, at) where s.host_id = new.id and s.until is null returning s.until into at;
  end if;
  insert into host_states (host_id, since, state, gpus, cpu_slots, host, pool)
  values (new.id, coalesce(at, greatest(new.state_at, new.registered_at)), new.state, jsonb_array_length(new.gpus), new.cpu_slots, new.name, new.pool);
  return null;
end
$$;
create trigger hosts_begin after insert on hosts for each row execute function keep_host_state();
create trigger hosts_change after update of state, gpus, cpu_slots, pool, name on hosts for each row
  when ((old.state, old.gpus, old.cpu_slots, old.pool, old.name) is distinct from (new.state, new.gpus, new.cpu_slots, new.pool, new.name))
  execute function keep_host_state();

-- name: read_host_times
-- A rented machine offers what its offer says from the moment at which its provider made it, until it serves; and until its
-- provider says that it is gone, because it is paid for until then, also where its host was ended before.
-- silent: whether nothing was heard of it for a minute before the span and since. Only where the leader would have heard.
select s.host_id, s.host, s.pool, s.state, greatest(s.since, i.made_at) as since, least(s.until, i.gone_at) as until,
       coalesce(b.heartbeat_at < %(heard_until)s, false) as silent,
       case when s.state in ('spawning', 'error', 'terminated') and i.made_at is not null
         then greatest(s.gpus, i.gpus) else s.gpus end as gpus,
       case when s.state in ('spawning', 'error', 'terminated') and i.made_at is not null
         then greatest(s.cpu_slots, i.cpu_slots) else s.cpu_slots end as cpu_slots
from host_states s left join instances i on i.host_id = s.host_id
left join heartbeats b on b.host_id = s.host_id and b.incarnation <> ''
where greatest(s.since, i.made_at) < %(until)s and (s.until is null or s.until > %(since)s)
  and (i.gone_at is null or i.gone_at > greatest(%(since)s, s.since))
  and (s.state not in ('spawning', 'terminated') or i.made_at is not null)
order by s.host_id, s.since;

-- name: prune_host_states
-- The last state of a host that is over ends with its machine, if it has one.
delete from host_states s where until < %(before)s or (until is null and state = 'terminated' and since < %(before)s
  and not exists (select from instances i where i.host_id = s.host_id and (i.gone_at is null or i.gone_at >= %(before)s)));
