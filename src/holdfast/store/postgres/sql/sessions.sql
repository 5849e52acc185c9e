-- Sessions: which user came into which task, from where, with which command, when and for how long. Kept as long as their jobs.

create table sessions (
  id           text primary key,
  job_id       text not null,
  rank         integer not null,
  epoch        bigint not null,
  attempt      integer not null,
  host_id      text not null,
  project      text not null,
  kind         text not null,
  command      text not null default '',
  tty          boolean not null default false,
  owner        text not null, -- the user that came in
  token_id     text not null,
  token_name   text not null default '',
  from_address text not null default '',
  state        text not null default 'opening' constraint sessions_state_check check (state in ('opening', 'running', 'ended')),
  created_at   timestamptz not null,
  ended_at     timestamptz,
  exit_code    integer,
  reason       text not null default '',
  constraint sessions_shape check ((state = 'ended') = (ended_at is not null))
);
create index sessions_of_job on sessions (job_id, created_at);
create index sessions_open on sessions (host_id) where state <> 'ended';

-- name: find_session_task
select t.job_id, t.rank, t.epoch, t.attempt, t.state, t.host_id, t.queue, h.name as host_name,
       coalesce(%(now)s, clock_timestamp()) as now
from tasks t left join hosts h on h.id = t.host_id where t.job_id = %(job_id)s and t.rank = %(rank)s;

-- name: find_closed_host
-- No row where a rank runs on a host that takes sessions, or none runs.
select min(h.name) as host from tasks t join hosts h on h.id = t.host_id
where t.job_id = %(job_id)s and t.state = 'running'
having bool_and(coalesce(h.labels->>%(label)s, '') = %(value)s);

-- name: insert_session
insert into sessions (id, job_id, rank, epoch, attempt, host_id, project, kind, command, tty, owner, token_id, token_name,
                      from_address, created_at)
values (%(id)s, %(job_id)s, %(rank)s, %(epoch)s, %(attempt)s, %(host_id)s, %(project)s, %(kind)s, %(command)s, %(tty)s,
        %(owner)s, %(token_id)s, %(token_name)s, %(from_address)s, %(at)s);

-- name: read_session
select id, job_id, rank, epoch, host_id, kind, command, tty, owner, token_name, from_address, state, created_at, ended_at,
       exit_code, reason
from sessions where id = %(id)s;

-- name: list_sessions
select id, job_id, rank, epoch, host_id, kind, command, tty, owner, token_name, from_address, state, created_at, ended_at,
       exit_code, reason
from sessions
where (%(job_id)s::text is null or job_id = %(job_id)s) and (%(also_over)s or state <> 'ended')
order by created_at desc, id desc limit %(limit)s;

-- name: note_session_begun
update sessions set state = 'running' where id = %(id)s and state = any(%(begin_from)s);

-- name: end_session
-- Once, because the guard reads the state.
update sessions set state = 'ended', ended_at = greatest(created_at, coalesce(%(now)s, clock_timestamp())),
       exit_code = %(exit_code)s, reason = %(reason)s
where id = %(id)s and state = any(%(end_from)s) and (%(host_id)s::text is null or host_id = %(host_id)s)
returning id, job_id, rank, epoch, attempt, host_id, project, kind, command, owner, from_address, ended_at,
          extract(epoch from ended_at - created_at)::double precision as seconds;

-- name: find_lost_sessions
-- Sessions end with their attempts (INSIDE-2); where their host could not say so, this finds them.
select s.id from sessions s
where s.state <> 'ended' and s.created_at < coalesce(%(now)s, clock_timestamp()) - interval '30 seconds'
  and not exists (select from tasks t where t.job_id = s.job_id and t.rank = s.rank and t.epoch = s.epoch
                  and t.host_id = s.host_id and t.state in ('running', 'preempting'))
limit 500;

-- name: find_barred_sessions
-- Open sessions whose token is over, or in whose project sessions are switched off.
select s.id, case when s.project = any(%(closed)s::text[]) or %(all_closed)s then 'sessions were switched off'
                  when t.revoked_at is not null then 'its token was revoked' else 'its token expired' end as reason
from sessions s join tokens t on t.id = s.token_id
where s.state <> 'ended' and (s.project = any(%(closed)s::text[]) or %(all_closed)s or t.revoked_at is not null
      or t.expires_at <= coalesce(%(now)s, clock_timestamp()))
limit 500;

-- name: prune_sessions
delete from sessions where job_id = any(%(ids)s);
