-- Why a provider takes a machine away, in Holdfast's word (`Machine.lost`), kept because the machine is often gone from the
-- next listing, and its work is charged by it.
alter table instances add column lost text not null default '';
