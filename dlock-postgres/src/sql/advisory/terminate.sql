-- Ends a session. In: pid, started: the session. Out: a row with `sessions`: 0 if the session has ended
-- and owns no lock.
SELECT count(pg_catalog.pg_terminate_backend(pid))::text AS sessions FROM pg_catalog.pg_stat_get_activity({pid})
WHERE (extract(epoch FROM backend_start) * 1000000)::bigint = {started}
