-- Prepares a session. What it changes outside of a transaction is committed at once, whatever the server's default. A
-- statement waits for a locked row for a second, which is the least: whoever sent it may be gone by then.
-- In: nothing. Out: a row that tells whether the server takes no writes, how long a call may be, in bytes, and the number of the
-- session.
SET SESSION autocommit = 1;
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET SESSION innodb_lock_wait_timeout = 1;
SELECT @@global.read_only, @@session.max_allowed_packet, CONNECTION_ID()
