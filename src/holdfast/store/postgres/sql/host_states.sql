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
-- A machine that is being rented offers what its offer says, from the moment at which its provider made it.
-- silent: whether nothing was heard of it for a minute before the span and since. Only where the leader would have heard.
select s.host_id, s.host, s.pool, s.state, s.until,
       coalesce(b.heartbeat_at < %(heard_until)s, false) as silent,
       case when s.state = 'spawning' then greatest(s.since, i.made_at) else s.since end as since,
       case when s.state = 'spawning' then greatest(s.gpus, i.gpus) else s.gpus end as gpus,
       case when s.state = 'spawning' then greatest(s.cpu_slots, i.cpu_slots) else s.cpu_slots end as cpu_slots
from host_states s left join instances i on i.host_id = s.host_id
left join heartbeats b on b.host_id = s.host_id and b.incarnation <> ''
where s.since < %(until)s and (s.until is null or s.until > %(since)s) and s.state <> 'terminated'
  and (s.state <> 'spawning' or i.made_at is not null)
order by s.host_id, s.since;

-- name: prune_host_states
delete from host_states where until < %(before)s;
