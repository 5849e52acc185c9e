-- Until when a rank's section excuses the ranks of its gang that wait for it on other hosts.
alter table tasks add column section_until timestamptz;
