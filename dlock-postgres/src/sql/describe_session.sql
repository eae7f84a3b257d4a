-- Describes a session. Out: a row with `version`: text of the version; `version_num`: its number;
-- `is_read_only`: whether the server accepts no writes; `isolation`: default isolation level; and
-- `clock`: microseconds since 1970.
SELECT pg_catalog.version() AS version, pg_catalog.current_setting('server_version_num') AS version_num,
    (pg_catalog.pg_is_in_recovery() OR pg_catalog.current_setting('transaction_read_only') = 'on')::text AS is_read_only,
    pg_catalog.current_setting('default_transaction_isolation') AS isolation,
    (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint::text AS clock
