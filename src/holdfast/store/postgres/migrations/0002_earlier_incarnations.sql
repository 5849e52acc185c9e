-- LEASE-3: a registration that comes late, from an incarnation that is over, is no evidence that the present one is gone.
alter table hosts add column earlier_incarnations text[] not null default '{}';
