-- Identifies the running server of a session. Out: a row with `started`: start time of the server, in
-- microseconds since 1970.
SELECT (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint::text AS started
