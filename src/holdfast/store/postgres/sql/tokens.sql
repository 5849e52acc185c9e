-- Tokens: what opens the API, by role.

create table tokens (
  id          text primary key,
  role        text not null constraint tokens_role_check check (role in ('admin', 'submit', 'read', 'join')),
  name        text not null default '',
  user_name   text not null default '', -- the owner of what is submitted with it
  secret_hash bytea not null unique check (octet_length(secret_hash) = 32),
  host_id     text, -- of a join token that is bound to one intent: good for that host alone
  created_at  timestamptz not null,
  expires_at  timestamptz,
  used_at     timestamptz, -- of a join token
  revoked_at  timestamptz,
  reach       text[] not null default '{}' -- projects into whose jobs of other users its user may come (REACH-1)
);

-- name: insert_token
-- A repeated id is a repeated call.
insert into tokens (id, role, name, user_name, secret_hash, created_at, expires_at, reach)
values (%(id)s, %(role)s, %(name)s, %(user)s, %(secret_hash)s, coalesce(%(now)s, clock_timestamp()), %(expires_at)s, %(reach)s::text[])
on conflict (id) do nothing;

-- name: read_token
select id, role, name, user_name as "user", created_at, expires_at, used_at, revoked_at, host_id, reach from tokens where id = %(id)s;

-- name: find_token
select id, role, name, user_name as "user", created_at, expires_at, used_at, revoked_at, host_id, reach from tokens
where secret_hash = %(secret_hash)s and (%(also_over)s or revoked_at is null
  and (expires_at is null or expires_at > coalesce(%(now)s, clock_timestamp())));

-- name: use_join_token
-- The guard is in the update, so of two racers one gets the row.
update tokens set used_at = coalesce(%(now)s, clock_timestamp())
where secret_hash = %(secret_hash)s and role = 'join' and used_at is null and revoked_at is null
  and (expires_at is null or expires_at > coalesce(%(now)s, clock_timestamp()))
returning id, role, name, user_name as "user", created_at, expires_at, used_at, revoked_at, host_id, reach;

-- name: list_tokens
select id, role, name, user_name as "user", created_at, expires_at, used_at, revoked_at, host_id, reach from tokens order by created_at, id;

-- name: revoke_token
update tokens set revoked_at = coalesce(revoked_at, %(now)s, clock_timestamp()) where id = %(id)s returning id, name;

-- name: insert_host_token
insert into tokens (id, role, name, secret_hash, created_at, expires_at, host_id)
values (%(token_id)s, 'join', %(name)s, %(secret_hash)s, %(now)s, %(now)s::timestamptz + %(seconds)s * interval '1 second', %(id)s);
