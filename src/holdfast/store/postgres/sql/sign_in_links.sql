-- Links that sign one browser in, once. Only hashes are kept.

create table sign_in_links (
  secret_hash bytea primary key check (octet_length(secret_hash) = 32),
  token_id    text not null,
  expires_at  timestamptz not null
);
create index sign_in_links_expiry on sign_in_links (expires_at);

-- name: insert_sign_in_link
insert into sign_in_links (secret_hash, token_id, expires_at)
values (%(secret_hash)s, %(token_id)s, coalesce(%(now)s::timestamptz, clock_timestamp()) + make_interval(secs => %(seconds)s))
returning expires_at;

-- name: spend_sign_in_link
-- The delete is the guard: of two browsers with one link, one gets the row.
delete from sign_in_links where secret_hash = %(secret_hash)s
returning token_id, expires_at > coalesce(%(now)s::timestamptz, clock_timestamp()) as good;

-- name: prune_sign_in_links
delete from sign_in_links where expires_at < coalesce(%(now)s, clock_timestamp());
