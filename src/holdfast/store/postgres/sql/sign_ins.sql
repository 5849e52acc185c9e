-- Sign-ins: browsers that act for the user of a token, each until it ends, expires, or its token does. Only hashes are kept.

create table sign_ins (
  id          text primary key,
  token_id    text not null,
  secret_hash bytea not null unique check (octet_length(secret_hash) = 32), -- of the browser's cookie
  proof_hash  bytea not null check (octet_length(proof_hash) = 32), -- of what only our pages hold
  browser     text not null default '', -- as the browser names itself
  address     text not null default '',
  created_at  timestamptz not null,
  expires_at  timestamptz not null,
  ended_at    timestamptz
);
create index sign_ins_of_token on sign_ins (token_id);
create index sign_ins_expiry on sign_ins (expires_at);

-- name: insert_sign_in
insert into sign_ins (id, token_id, secret_hash, proof_hash, browser, address, created_at, expires_at)
select %(id)s, t.id, %(secret_hash)s, %(proof_hash)s, %(browser)s, %(address)s, c.now,
       least(c.now + make_interval(secs => %(seconds)s), t.expires_at)
from tokens t, (select coalesce(%(now)s::timestamptz, clock_timestamp()) as now) c
where t.id = %(token_id)s and t.revoked_at is null and (t.expires_at is null or t.expires_at > c.now)
returning id, (select coalesce(nullif(u.user_name, ''), nullif(u.name, ''), u.id) from tokens u where u.id = token_id) as "user";

-- name: find_sign_in
-- With the token that it acts by, which has to be in force too.
select s.id as sign_in, s.proof_hash, s.expires_at as over_at, t.id, t.role, t.name, t.user_name as "user", t.created_at,
       t.expires_at, t.used_at, t.revoked_at, t.host_id, t.reach
from sign_ins s join tokens t on t.id = s.token_id,
     (select coalesce(%(now)s::timestamptz, clock_timestamp()) as now) c
where s.secret_hash = %(secret_hash)s and s.ended_at is null and s.expires_at > c.now
  and t.revoked_at is null and (t.expires_at is null or t.expires_at > c.now);

-- name: list_sign_ins
select s.id, s.token_id, t.role, coalesce(nullif(t.user_name, ''), nullif(t.name, ''), t.id) as "user", s.browser, s.address,
       s.created_at, s.expires_at
from sign_ins s join tokens t on t.id = s.token_id,
     (select coalesce(%(now)s::timestamptz, clock_timestamp()) as now) c
where s.ended_at is null and s.expires_at > c.now
  and t.revoked_at is null and (t.expires_at is null or t.expires_at > c.now)
  and (%(user)s::text is null or coalesce(nullif(t.user_name, ''), nullif(t.name, ''), t.id) = %(user)s)
order by s.created_at, s.id;

-- name: end_sign_in
update sign_ins s set ended_at = coalesce(%(now)s, clock_timestamp())
from tokens t
where s.id = %(id)s and s.ended_at is null and t.id = s.token_id
  and (%(user)s::text is null or coalesce(nullif(t.user_name, ''), nullif(t.name, ''), t.id) = %(user)s)
returning s.id, coalesce(nullif(t.user_name, ''), nullif(t.name, ''), t.id) as "user";

-- name: prune_sign_ins
-- A month after they are over.
delete from sign_ins where expires_at < coalesce(%(now)s, clock_timestamp()) - interval '30 days';
