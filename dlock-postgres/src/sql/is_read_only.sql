-- Returns a row with `is_read_only`: whether the server of a session accepts no writes any more.
SELECT (pg_catalog.pg_is_in_recovery() OR pg_catalog.current_setting('transaction_read_only') = 'on')::text AS is_read_only
