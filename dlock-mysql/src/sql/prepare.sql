-- Prepares a new session. Statements outside of a transaction are committed at once, and a commit
-- ends only its transaction, whatever the server's defaults. A statement waits for a locked row or
-- table for one second, which is the server's minimum: its caller may have given up by then. Server
-- defaults that change the meaning of statements, or that refuse an update without a key, are
-- overridden.
-- In: tag: SQL that takes the named lock that identifies the session, or 0.
-- Out: a row with `is_read_only`: 1 if the server accepts no writes; `max_packet`: maximum size of
-- a call in bytes; `session`: the connection id; and `tag`, which has no meaning.
SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_safe_updates = 0, sql_big_selects = 1,
    sql_select_limit = 18446744073709551615, max_join_size = 18446744073709551615;
SET SESSION autocommit = 1, completion_type = 0, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1
    /*M!100101 , max_statement_time = 0 */;
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT :read_only AS is_read_only, @@session.max_allowed_packet AS max_packet, CONNECTION_ID() AS session, :tag AS tag
