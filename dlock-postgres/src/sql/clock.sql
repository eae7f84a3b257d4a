-- Reads the server's clock. Out: a row with `clock`: microseconds since 1970.
SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint AS clock
