-- name: insert_token
-- A repeated id is a repeated call.
insert into tokens (id, role, name, user_name, secret_hash, created_at, expires_at)
values (%(id)s, %(role)s, %(name)s, %(user)s, %(secret_hash)s, coalesce(%(now)s, clock_timestamp()), %(expires_at)s)
on conflict (id) do nothing;

-- name: read_token
select id, role, name, user_name as "user", created_at, expires_at, used_at, revoked_at, host_id from tokens where id = %(id)s;

-- name: find_token
select id, role, name, user_name as "user", created_at, expires_at, used_at, revoked_at, host_id from tokens
where secret_hash = %(secret_hash)s and (%(also_over)s or revoked_at is null
  and (expires_at is null or expires_at > coalesce(%(now)s, clock_timestamp())));

-- name: use_join_token
-- The guard is in the update, so of two racers one gets the row.
update tokens set used_at = coalesce(%(now)s, clock_timestamp())
where secret_hash = %(secret_hash)s and role = 'join' and used_at is null and revoked_at is null
  and (expires_at is null or expires_at > coalesce(%(now)s, clock_timestamp()))
returning id, role, name, user_name as "user", created_at, expires_at, used_at, revoked_at, host_id;

-- name: list_tokens
select id, role, name, user_name as "user", created_at, expires_at, used_at, revoked_at, host_id from tokens order by created_at, id;

-- name: revoke_token
update tokens set revoked_at = coalesce(revoked_at, %(now)s, clock_timestamp()) where id = %(id)s returning id;

-- name: find_task_holder
-- The task as it holds its lease now, and nothing of one that does not.
select h.key_hash as host_key_hash, j.owner, j.project, j.spec ? 'executor' as executor
from tasks t join jobs j on j.id = t.job_id join hosts h on h.id = t.host_id
where t.job_id = %(job_id)s and t.rank = %(rank)s and t.epoch = %(epoch)s
  and t.state in ('reserved', 'running', 'preempting') and h.key_hash is not null;
