-- Takes a named lock, and draws a number for it. From now on the server ends the session after the
-- given silence. A session that has waited for the lock also waits while another session locks the
-- tables, because a refusal would cost its place among the waiters.
-- In: lock: its name; seconds: time to wait for the lock; silence, table_wait: seconds; name: the
-- lock's name for which the number is drawn; fence: the table; comment: the claim; session: the
-- connection id of the client's session.
-- Out: a row with `result` and `token`. `result` is 1 if the session now owns the lock, 0 if
-- another session owns it, -1 if the wait was ended, and -2 if the lock was not requested, because
-- this is not the client's session or because the session owns the lock already. `token` is the
-- number, or 0 if none was drawn.
:writable, SESSION wait_timeout = :silence, SESSION lock_wait_timeout = :table_wait, @dlock_has = IF(
    CONNECTION_ID() = :session AND COALESCE(IS_USED_LOCK(:lock) <> CONNECTION_ID(), 1), GET_LOCK(:lock, :seconds), -2) /*dlock :comment*/;
UPDATE :fence SET last = LAST_INSERT_ID(
        IF(:read_only, :refusal, GREATEST(last + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))))
    WHERE bucket = CRC32(:name) % 1024 AND @dlock_has = 1;
SELECT COALESCE(@dlock_has, -1) AS result, IF(ROW_COUNT() = 1, LAST_INSERT_ID(), 0) AS token
