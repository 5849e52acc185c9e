-- Jobs that the leader has just passed over, one row: hosts may take jobs past these, and past no others (TAKE-2).

create table passed_over (
  id      smallint primary key default 1 check (id = 1),
  at      timestamptz not null default '-infinity',
  holds   boolean not null default true, -- its round held room back for one of them, so hosts take jobs past none
  job_ids text[] not null default '{}'
) with (fillfactor = 50);
insert into passed_over default values;

-- name: note_passed
-- Written only where it changes, or grows old (TAKE-2).
update passed_over set at = coalesce(%(now)s::timestamptz, clock_timestamp()), holds = %(holds)s, job_ids = %(ids)s
where holds <> %(holds)s or job_ids <> %(ids)s::text[]
   or (at < coalesce(%(now)s::timestamptz, clock_timestamp()) - interval '1 second' and job_ids <> '{}');

-- part: terms_of_takes
-- Whether hosts may take jobs under these settings, and what the leader has just passed over (TAKE-2).
select c.settings_rev = %(revision)s as allowed, coalesce(%(now)s::timestamptz, clock_timestamp()) as now,
       case when p.holds or p.at < coalesce(%(now)s::timestamptz, clock_timestamp())
                                   - %(seconds)s::double precision * interval '1 second' then '{}'
            else p.job_ids end as passed
from cluster c cross join passed_over p;
