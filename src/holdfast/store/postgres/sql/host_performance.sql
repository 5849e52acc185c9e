-- How work ended on each host: from the attempts that are kept
-- (`history_days`), and the calls of the host; a gang counts on each of its hosts. What executors do are their calls, so their own
-- attempts do not count.
-- after: attempts, hosts, host_calls, jobs

create view host_performance as
select h.name as host, coalesce(d.done, 0) + coalesce(c.done, 0) as done, coalesce(d.failed, 0) + coalesce(c.failed, 0) as failed,
       (coalesce(d.done, 0) + coalesce(c.done, 0))::double precision
         / nullif(coalesce(d.done, 0) + coalesce(d.failed, 0) + coalesce(c.done, 0) + coalesce(c.failed, 0), 0) as success_rate,
       (coalesce(d.seconds, 0) + coalesce(c.seconds, 0))
         / nullif(coalesce(d.ended, 0) + coalesce(c.done, 0) + coalesce(c.failed, 0), 0) as mean_seconds,
       extract(epoch from clock_timestamp() - h.registered_at)::double precision as uptime
from hosts h left join (
  select x.host_id, count(*) filter (where a.outcome = 'succeeded') as done,
         count(*) filter (where a.outcome <> 'succeeded' and a.cause is not null) as failed,
         count(*) as ended, sum(extract(epoch from a.ended_at - a.started_at))::double precision as seconds
  from attempts a join jobs j on j.id = a.job_id cross join lateral (select distinct unnest(a.host_ids) as host_id) x
  where a.state = 'ended' and a.started_at is not null and not j.spec ? 'executor'
  group by x.host_id
) d on d.host_id = h.id
left join host_calls c on c.host_id = h.id
where h.state <> 'terminated';

-- name: read_host_performance
select host, done, failed, success_rate, mean_seconds, uptime from host_performance order by host;
