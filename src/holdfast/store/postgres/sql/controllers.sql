-- The controllers that serve, by the address at which others reach each: hosts learn them, so that they outlive the one that they joined.

create table controllers (
  url     text primary key,
  seen_at timestamptz not null
);

-- name: note_controller
insert into controllers (url, seen_at) values (%(url)s, coalesce(%(now)s::timestamptz, clock_timestamp()))
on conflict (url) do update set seen_at = excluded.seen_at;

-- name: forget_controllers
-- The one that stops, and those that said nothing for a day.
delete from controllers where url = %(url)s or seen_at < coalesce(%(now)s::timestamptz, clock_timestamp()) - interval '1 day';

-- name: list_controllers
select url from controllers
where seen_at > coalesce(%(now)s::timestamptz, clock_timestamp()) - make_interval(secs => %(seconds)s) order by seen_at desc, url limit 16;
