-- How many jobs were queued in each queue, minute by minute, and how old the oldest of them was. Kept for eight days; a
-- minute in which none was queued has no row.

create table queue_depths (
  queue          text not null,
  at             timestamptz not null, -- the start of a minute
  queued         integer not null check (queued > 0),
  oldest_seconds double precision not null check (oldest_seconds >= 0),
  primary key (queue, at)
);
create index queue_depths_at on queue_depths (at);

-- name: note_queue_depths
-- Of a minute that is noted twice, as by two leaders, the greater values stand.
with c as materialized (select coalesce(%(now)s::timestamptz, clock_timestamp()) as now) -- once, not for each job
insert into queue_depths (queue, at, queued, oldest_seconds)
select j.queue, date_trunc('minute', c.now, 'UTC'), count(*),
       greatest(0, extract(epoch from c.now - min(j.queued_at)))::double precision
from jobs j, c
where j.state = 'queued' group by j.queue, c.now
on conflict (queue, at) do update set queued = greatest(queue_depths.queued, excluded.queued),
  oldest_seconds = greatest(queue_depths.oldest_seconds, excluded.oldest_seconds);

-- name: prune_queue_depths
delete from queue_depths where at < coalesce(%(now)s::timestamptz, clock_timestamp()) - interval '8 days';

-- name: read_queue_depths
-- The greatest of each stretch.
select queue, date_bin(make_interval(secs => %(step)s), at, timestamptz 'epoch') as at, max(queued) as queued,
       max(oldest_seconds) as oldest_seconds
from queue_depths where at >= %(since)s group by 1, 2 order by 1, 2;
