-- Schedules: jobs that are submitted again and again. Lock order: a schedule, then queues and jobs.

create table schedules (
  id            text not null unique,
  name          text primary key,
  owner         text not null default '',
  project       text not null,
  queue         text not null,
  spec          jsonb not null, -- without the values of secrets
  secrets       jsonb not null default '{}',
  anchor        timestamptz not null, -- what intervals are counted from
  next_at       timestamptz not null,
  paused_at     timestamptz,
  paused_reason text not null default '',
  last_at       timestamptz,
  last_outcome  text,
  last_reason   text not null default '',
  last_job_id   text,
  created_at    timestamptz not null
);
create index schedules_due on schedules (next_at) where paused_at is null;

-- name: read_schedules
select s.id, s.name, s.owner, s.project, s.queue, s.spec, s.anchor, s.next_at, s.paused_at, s.paused_reason, s.last_at,
       s.last_outcome, s.last_reason, s.last_job_id, s.created_at, j.state as last_state
from schedules s left join jobs j on j.id = s.last_job_id
where %(name)s::text is null or s.name = %(name)s
order by s.name;

-- name: read_schedule_secrets
select secrets from schedules where name = %(name)s;

-- name: put_schedule
-- Its owner stays: a person who may change it does not take it over. One from before there were owners gets one.
insert into schedules (id, name, owner, project, queue, spec, secrets, anchor, next_at, created_at)
values (%(id)s, %(name)s, %(owner)s, %(project)s, %(queue)s, %(spec)s::jsonb, %(secrets)s::jsonb, %(now)s, %(next_at)s, %(now)s)
on conflict (name) do update set
  owner = coalesce(nullif(schedules.owner, ''), excluded.owner),
  project = excluded.project, queue = excluded.queue, spec = excluded.spec, secrets = excluded.secrets,
  anchor = case when %(timed)s::boolean then excluded.anchor else schedules.anchor end,
  next_at = case when %(timed)s::boolean then excluded.next_at else schedules.next_at end;

-- name: lock_schedule
select id, name, project, queue, spec, next_at, paused_at from schedules
where (%(id)s::text is null or id = %(id)s) and (%(name)s::text is null or name = %(name)s)
for update;

-- name: delete_schedule
delete from schedules where id = %(id)s;

-- name: pause_schedule
update schedules set paused_at = coalesce(paused_at, %(now)s), paused_reason = %(reason)s where id = %(id)s;

-- name: resume_schedule
update schedules set paused_at = null, paused_reason = '', next_at = %(next_at)s where id = %(id)s and paused_at is not null;

-- name: find_due_schedules
select s.id, s.name, s.owner, s.project, s.queue, s.spec, s.secrets, s.anchor, s.next_at, s.last_at, s.last_outcome, s.last_reason,
       s.last_job_id, s.created_at, j.state as last_state
from schedules s left join jobs j on j.id = s.last_job_id
where s.paused_at is null and s.next_at <= coalesce(%(now)s::timestamptz, clock_timestamp())
order by s.next_at limit %(limit)s;

-- name: note_run
update schedules set
  next_at = coalesce(%(next_at)s, next_at),
  last_at = case when %(ran)s::boolean then %(now)s else last_at end,
  last_outcome = coalesce(%(outcome)s, last_outcome),
  last_reason = case when %(ran)s::boolean then %(reason)s else last_reason end,
  last_job_id = coalesce(%(job_id)s, last_job_id)
where id = %(id)s;
