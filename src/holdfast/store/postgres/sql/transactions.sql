-- Statements about a transaction itself and about the server, which belong to no table.
--
-- PostgreSQL does not know the sizes of the sets that the hot path gives, and a plan is kept for all of them. So rows are found by
-- arrays of keys, through an index, and then joined by hashes (`keep_plans`): a plan takes as long as its sets are large, whatever
-- the statistics say. tests/store/test_plans.py holds it.

-- name: keep_plans
-- For the rest of the transaction. Planning anew takes as long as running. Without these, 28 to 52 of the 60 statements
-- that tests/store/test_plans.py looks at read whole tables, because nothing is known of tables that were never analysed,
-- or were when they were empty. What is forbidden has a cost of 1e10, so sessions compile nothing (`session_settings`).
-- A key of several columns is looked up for each row of a set by a lateral look-up with a limit, which no plan turns round;
-- it gives the places (ctid) of rows that the transaction has locked.
select set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_nestloop', 'off', true),
       set_config('enable_seqscan', 'off', true);

-- name: commit_for_good
-- Undoes the relaxed commit that the transaction began with.
set local synchronous_commit to default;

-- name: commit_soon
-- What the transaction wrote may be lost by a crash of the server.
set local synchronous_commit to off;

-- name: read_now
select coalesce(%(now)s::timestamptz, clock_timestamp()) as now;

-- name: begin_snapshot
select coalesce(%(now)s::timestamptz, clock_timestamp()) as now;

-- name: gauge_oldest_transaction
-- An old snapshot keeps dead rows in every hot table, and an old writer holds back the readers of events (STORE-4).
select coalesce(greatest(
  (select extract(epoch from max(clock_timestamp() - a.xact_start)) from pg_stat_activity a
   where (a.backend_xmin is not null or a.backend_xid is not null) and a.pid <> pg_backend_pid()
     and a.backend_type = 'client backend'),
  (select extract(epoch from max(clock_timestamp() - p.prepared)) from pg_prepared_xacts p)
), 0)::double precision;
