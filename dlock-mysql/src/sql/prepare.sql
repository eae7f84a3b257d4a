-- Prepares a session. What it changes outside of a transaction is committed at once, and a commit ends nothing but its transaction,
-- whatever the server's defaults. A statement waits for a locked row or table for a second, which is the least: whoever sent it may be
-- gone by then.
-- In: tag: what takes the named lock that tells this session from all others, or 0. Out: a row that tells whether the server takes no
-- writes, how long a call may be, in bytes, the number of the session, and nothing of use.
SET SESSION autocommit = 1, completion_type = 0, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1
    /*M!100101 , max_statement_time = 0 */;
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT :read_only, @@session.max_allowed_packet, CONNECTION_ID(), :tag
