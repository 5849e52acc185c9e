-- What PostgreSQL does beside the work costs it less.

-- A server's process keeps the plan of its first calls, which often find small tables: it read all jobs then, and
-- compared each with each that was handed over, for seconds where there were hundreds of thousands. What a caller sets
-- (`keep_plans`) is not always set where this is called, so it says the same for itself.
alter function unpack_handovers(text[])
  set plan_cache_mode = 'force_generic_plan' set enable_nestloop = off set enable_seqscan = off;

-- An analysis samples 300 rows for each unit of the largest target of a table's columns, sorts each column, and counts
-- the elements of arrays. A twentieth of these tables is new every few seconds where hosts take many jobs, and the
-- analyses took a tenth of a processor. No statement asks for more than the rough share of a value, and none for what is
-- in an array or a document.
do $$
declare c record;
begin
  for c in select a.attrelid::regclass as t, a.attname, t.typcategory = 'A' or t.typname = 'jsonb' as wide
           from pg_attribute a join pg_type t on t.oid = a.atttypid
           where a.attrelid in ('jobs'::regclass, 'tasks'::regclass, 'attempts'::regclass, 'events'::regclass,
                                'event_batches'::regclass) and a.attnum > 0 and not a.attisdropped
  loop
    execute format('alter table %s alter column %I set statistics %s', c.t, c.attname, case when c.wide then 0 else 20 end);
  end loop;
end
$$;
