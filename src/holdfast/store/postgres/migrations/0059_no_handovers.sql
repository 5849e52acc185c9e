-- What a host takes has rows of its own from the beginning, so no job lies in a row that one host alone may read.
select unpack_handovers(null);
drop function unpack_handovers(text[]);
drop function look_for_handovers();
drop table handovers;
alter table ready_jobs drop column kind;
