-- Ends sessions that own an advisory lock. In: condition: selects the rows of the lock in pg_locks; pids:
-- the sessions. Another session that owns the lock by now stays. Out: a row with `sessions`: their number.
SELECT count(pg_catalog.pg_terminate_backend(l.pid))::text AS sessions FROM pg_catalog.pg_locks l
WHERE l.granted AND l.locktype = 'advisory' AND l.pid IN ({pids}) AND {condition}
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
