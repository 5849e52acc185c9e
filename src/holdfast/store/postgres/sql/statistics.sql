-- Targets of statistics for the tables that grow with jobs, set here because each names all columns of its table.
-- after: jobs, tasks, attempts, events, event_batches

-- An analysis samples 300 rows for each unit of the largest target of a table's columns, sorts each column, and counts the
-- elements of arrays. A twentieth of these tables is new every few seconds where hosts take many jobs, and the analyses took a
-- tenth of a processor. No statement asks for more than the rough share of a value, and none for what is in an array or a document.
do $$
declare c record;
begin
  for c in select a.attrelid::regclass as t, a.attname, t.typcategory = 'A' or t.typname = 'jsonb' as wide
           from pg_attribute a join pg_type t on t.oid = a.atttypid
           where a.attrelid in ('jobs'::regclass, 'tasks'::regclass, 'attempts'::regclass, 'events'::regclass,
                                'event_batches'::regclass) and a.attnum > 0
  loop
    execute format('alter table %s alter column %I set statistics %s', c.t, c.attname, case when c.wide then 0 else 20 end);
  end loop;
end
$$;
