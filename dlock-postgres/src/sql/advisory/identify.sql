-- Identifies a session. Out: a row with `pid`, and `started`: start time of the session in microseconds
-- since 1970.
SELECT pid::text AS pid, ((extract(epoch FROM backend_start) * 1000000)::bigint)::text AS started
FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid())
