-- The boot under which a host registered, by which a clone of its disk is told from the machine itself.
alter table hosts add column boot_id text not null default '';
