-- Prepares a session. What it changes outside of a transaction is committed at once, and a commit ends nothing but its transaction,
-- whatever the server's defaults. A statement waits for a locked row or table for a second, which is the least: whoever sent it may be
-- gone by then. Defaults of the server that change what a statement means, or refuse an update that has no key, do not apply.
-- In: tag: what takes the named lock that tells this session from all others, or 0. Out: a row that tells whether the server takes no
-- writes, how long a call may be, in bytes, the number of the session, and nothing of use.
SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_safe_updates = 0, sql_big_selects = 1,
    sql_select_limit = 18446744073709551615, max_join_size = 18446744073709551615;
SET SESSION autocommit = 1, completion_type = 0, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1
    /*M!100101 , max_statement_time = 0 */;
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT :read_only, @@session.max_allowed_packet, CONNECTION_ID(), :tag
