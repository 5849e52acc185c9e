-- Suspects: ranks that are slow by themselves or computed wrongly, gangs that slowed, and work that stands still, with the evidence.
-- after: jobs

create table suspects (
  job_id   text not null,
  attempt  integer not null check (attempt >= 1),
  rank     integer not null check (rank >= -1), -- -1: the gang as a whole
  kind     text not null constraint suspects_kind_check check (kind in ('slow', 'slowed', 'corrupt', 'still')),
  host_id  text,
  at       timestamptz not null,
  step     bigint not null,
  message  text not null,
  evidence jsonb not null default '{}',
  act      text not null default '' constraint suspects_act_check check (act in ('', 'blame', 'replace', 'restart')),
  ended_at timestamptz, -- when the rank kept up, or its work moved, again
  primary key (job_id, attempt, rank, kind)
);

-- name: put_suspect
insert into suspects (job_id, attempt, rank, kind, host_id, at, step, message, evidence, act)
values (%(job_id)s, %(attempt)s, %(rank)s, %(kind)s, %(host_id)s, %(now)s, %(step)s, %(message)s, %(evidence)s::jsonb, %(act)s)
on conflict (job_id, attempt, rank, kind) do update set
  host_id = excluded.host_id, at = case when suspects.ended_at is null then suspects.at else excluded.at end,
  step = excluded.step, message = excluded.message, evidence = excluded.evidence,
  act = case when excluded.act = '' then suspects.act else excluded.act end, ended_at = null;

-- name: end_suspect
update suspects set ended_at = %(now)s
where job_id = %(job_id)s and attempt = %(attempt)s and rank = %(rank)s and kind = %(kind)s and ended_at is null;

-- name: list_suspects
select s.job_id, s.attempt, nullif(s.rank, -1) as rank, s.kind, h.name as host, s.at, s.step, s.message, s.evidence, s.act,
  s.ended_at
from suspects s left join hosts h on h.id = s.host_id
where s.job_id = any(%(ids)s)
order by s.job_id, s.attempt, s.at, s.rank;

-- name: count_restarts
select count(distinct attempt) from suspects where job_id = %(job_id)s and kind = 'slow' and act = 'restart';

-- name: prune_suspects
delete from suspects where job_id = any(%(ids)s);
