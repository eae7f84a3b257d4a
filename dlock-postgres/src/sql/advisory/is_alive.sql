-- Asks whether a session is alive. In: pid, started: the session. Out: a row with `sessions`: 0 if the
-- session has ended.
SELECT count(*)::text AS sessions FROM pg_catalog.pg_stat_get_activity({pid})
WHERE (extract(epoch FROM backend_start) * 1000000)::bigint = {started}
