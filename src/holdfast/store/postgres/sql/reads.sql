-- Reads for many jobs at once. Each lateral part is one short index scan with a bound for each job.

-- name: read_attempts_of
-- Without members, because a gang of a thousand ranks has a thousand of them in every attempt.
select {columns:attempt:a but members step total},
       case when b.beat_at is null then a.step else b.step end as step,
       case when b.beat_at is null then a.total else b.total end as total,
       exists (select from forensics f where f.job_id = a.job_id and f.attempt = a.number) as has_forensics
from unnest(%(ids)s::text[]) as asked(id) cross join lateral (
  select * from attempts x
  where x.job_id = asked.id and (%(before)s::integer is null or x.number < %(before)s)
    and (%(cause)s::text is null or x.cause = %(cause)s)
  order by x.number desc limit %(last)s
) a left join lateral (
  select t.step, t.total, t.beat_at from tasks t
  where t.job_id = a.job_id and t.attempt = a.number and t.beat_at is not null
  order by t.beat_at desc, t.rank limit 1
) b on a.state <> 'ended'
order by a.job_id, a.number;

-- name: read_attempts_by_key
select {columns:attempt:a but members step total},
       case when %(members)s then members_of(a) else '[]'::jsonb end as members,
       case when b.beat_at is null then a.step else b.step end as step,
       case when b.beat_at is null then a.total else b.total end as total,
       exists (select from forensics f where f.job_id = a.job_id and f.attempt = a.number) as has_forensics
from unnest(%(ids)s::text[], %(numbers)s::integer[]) as asked(id, number)
join attempts a on a.job_id = asked.id and a.number = asked.number
left join lateral (
  select t.step, t.total, t.beat_at from tasks t
  where t.job_id = a.job_id and t.attempt = a.number and t.beat_at is not null
  order by t.beat_at desc, t.rank limit 1
) b on a.state <> 'ended';

-- name: read_members_of
-- Unpacked here, so that only the ranks that are asked for are sent.
select asked.id as job_id, asked.number, m.member
from unnest(%(ids)s::text[], %(numbers)s::integer[]) as asked(id, number)
join attempts a on a.job_id = asked.id and a.number = asked.number
cross join lateral (
  select x as member, (x->>'rank')::integer as rank from jsonb_array_elements(members_of(a)) x
  where (x->>'rank')::integer > %(after)s order by 2 limit %(first)s
) m
order by asked.id, asked.number, m.rank;

-- name: read_tasks_of
select {columns:task:t}, h.name as host_name
from unnest(%(ids)s::text[]) as asked(id) cross join lateral (
  select * from tasks x where x.job_id = asked.id and x.rank > %(after)s order by x.rank limit %(first)s
) t left join hosts h on h.id = t.host_id
order by t.job_id, t.rank;

-- name: read_queue_places
-- Reads at most 10 000 rows for each job, because a larger number is of no use.
select me.id, (
  select count(*) from (
    select from jobs r
    where r.state = 'queued' and r.queue = me.queue and (r.priority > me.priority or (r.priority = me.priority and r.place < me.place))
    limit 10000
  ) ahead) as place
from jobs me where me.id = any(%(ids)s) and me.state = 'queued';
