-- As the other columns of a hot table (0039): no statement asks for more than the rough share of a value.
alter table tasks alter column section_until set statistics 20;
