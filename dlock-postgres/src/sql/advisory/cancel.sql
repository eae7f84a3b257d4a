-- Ends the statement of a session, but not the session. In: pid, started: the session. Out: a row with
-- `sessions`: 0 if the session has ended.
SELECT count(pg_catalog.pg_cancel_backend(pid))::text AS sessions FROM pg_catalog.pg_stat_get_activity({pid})
WHERE (extract(epoch FROM backend_start) * 1000000)::bigint = {started}
