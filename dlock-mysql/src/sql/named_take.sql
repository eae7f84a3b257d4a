-- Takes a named lock, and draws a number for it. From now on the server ends the session after so much silence. A session that has
-- waited for the lock also waits while somebody locks the tables, since it would lose its place if it were refused.
-- In: lock: its name; seconds: how long to wait; silence, patience for tables: in seconds; name: of which name the number is; fence: the
-- table; mark: who asks; session: the number that the client's session had. Out: a row with 1 if the session has the lock, 0 if another
-- has it, -1 if the wait was ended, -2 if this is another session than the client's, or had the lock already; and the number, or 0 if
-- none was drawn.
:writable, SESSION wait_timeout = :silence, SESSION lock_wait_timeout = :patience, @dlock_has = IF(
    CONNECTION_ID() = :session AND COALESCE(IS_USED_LOCK(:lock) <> CONNECTION_ID(), 1), GET_LOCK(:lock, :seconds), -2) /*dlock :mark*/;
UPDATE :fence SET last = LAST_INSERT_ID(
        IF(:read_only, :refusal, GREATEST(last + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))))
    WHERE bucket = CRC32(:name) % 1024 AND @dlock_has = 1;
SELECT COALESCE(@dlock_has, -1), IF(ROW_COUNT() = 1, LAST_INSERT_ID(), 0)
