-- The cluster itself, one row: its settings, its name, its rules.

create table cluster (
  id           smallint primary key default 1 check (id = 1),
  settings     jsonb  not null default '{}',
  settings_rev bigint not null default 1 check (settings_rev >= 1), -- grows with each change of any settings, queues' and projects' too
  rules        text not null default '', -- operators' rules of classification, as they wrote them (TOML)
  -- Made once: it stands in every rented machine's name, so that no other Holdfast takes the machine for its own.
  installation text not null default substr(replace(gen_random_uuid()::text, '-', ''), 1, 12),
  -- The id of the blob store that holds the blobs named here, and where that is; empty until a server has adopted one.
  blob_store   text not null default '',
  blob_place   text not null default '',
  -- Made once, and in no answer: with it one server proves to another that it is of this cluster.
  replica_key  text not null default replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '')
);
insert into cluster default values;

-- name: read_revision
select coalesce(max(settings_rev), 0) as revision from cluster;

-- name: read_settings
-- Every layer in one statement, so that all are of the revision beside them.
select coalesce(c.settings_rev, 0) as revision, coalesce(c.settings, '{}') as cluster, coalesce(c.rules, '') as rules,
  (select coalesce(jsonb_object_agg(name, settings), '{}') from queues) as queues,
  (select coalesce(jsonb_object_agg(name, settings), '{}') from projects) as projects
from (select) one left join cluster c on true;

-- name: begin_admission
-- The revision, and whether any job can be admitted: one look into the partial index. Only then the queues, and,
-- where one of them has a limit, the count of live jobs of each: that scan of jobs_live passes over every job that
-- left it since the last vacuum, which under load takes longer than everything else. `limits`: the environment sets
-- one. `whole`: as if a job were queued.
select c.settings_rev, c.settings, w.queued as anything_queued, w.blocked as anything_blocked, coalesce(%(now)s::timestamptz, clock_timestamp()) as now,
       case when w.queued then (
         select coalesce(jsonb_agg(jsonb_build_object(
           'name', q.name, 'settings', q.settings, 'paused', q.paused_at is not null, 'served', exists (
             select from hosts h where h.state = 'active' and (h.queues = '{}' or q.name = any(h.queues)))
           ) order by q.name), '[]') from queues q
       ) end as queues,
       case when w.queued and (
         %(limits)s::boolean or c.settings ? 'max_running' or exists (select from queues where settings ? 'max_running')
       ) then (
         select coalesce(jsonb_object_agg(l.queue, l.n), '{}') from (
           select j.queue, count(*) as n from jobs j
           where j.state in ('reserved', 'running', 'draining') group by j.queue
         ) l
       ) end as live,
       case when w.queued then (
         select min(j.priority) from jobs j where j.preemptible and j.state in ('reserved', 'running', 'draining')
       ) end as lowest_preemptible,
       case when w.queued then
         coalesce(c.settings->>'quota_jobs', c.settings->>'quota_gpus', nullif(c.settings->>'at_budget', 'notice')) is not null
         or exists (select from projects where coalesce(settings->>'quota_jobs', settings->>'quota_gpus', nullif(settings->>'at_budget', 'notice')) is not null)
       end as limited,
       case when w.queued then
         c.settings ?| array['share_gpus', 'share_cpu_slots']
         or exists (select from projects where settings ?| array['share_gpus', 'share_cpu_slots'])
       end as shared
from cluster c cross join (
  select b.blocked, %(whole)s::boolean or b.blocked or (
    select j.place from jobs j where j.state = 'queued' order by j.queue, j.priority desc, j.place limit 1) is not null as queued
  from (select exists (select from tasks where state = 'blocked') as blocked) b
) w;

-- name: share_switch
-- RETRY-6: a change of a kill switch, a project's too, raises the revision in this row; so it waits for a dispatch that
-- has read the row, or the dispatch waits for it.
select settings from cluster for share;

-- name: write_cluster
-- Raises the revision with the change, so that agents are sent the new watch settings.
update cluster set settings = (settings || %(changes)s::jsonb) - %(unset)s::text[], settings_rev = settings_rev + 1
returning settings_rev;

-- name: lock_cluster
select settings_rev, settings, rules from cluster for update;

-- name: write_rules
update cluster set rules = %(rules)s, settings_rev = settings_rev + 1 returning settings_rev;

-- name: bump_revision
update cluster set settings_rev = settings_rev + 1 returning settings_rev;

-- name: read_installation
select installation from cluster;

-- name: read_blob_store
-- `served`: another server than `holder` leads, so it serves.
select blob_store as id, blob_place as place,
       exists (select from leadership where holder <> %(holder)s and expires_at > clock_timestamp()) as served
from cluster;

-- name: adopt_blob_store
-- Of several servers that adopt at once, one writes.
update cluster set blob_store = %(id)s, blob_place = %(place)s where blob_store = %(instead_of)s;

-- name: read_replica_key
select replica_key from cluster;
