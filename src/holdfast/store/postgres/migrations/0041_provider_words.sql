-- What providers say, kept where operators look: of a machine that starts (said), of a spawn that failed (reason),
-- and until when a provider asks to be left in peace (quiet).
alter table instances add column said text not null default '';
alter table pool_outcomes add column reason text not null default '';
alter table pools add column quiet_until timestamptz, add column quiet_reason text not null default '';
