-- Takes a named lock, and draws a number for it. From now on the server ends the session after so much silence.
-- In: lock: its name; seconds: how long to wait; silence: in seconds; name: of which name the number is; fence: the table; mark: who
-- asks. Out: a row with 1 if the session has the lock, 0 if another has it, -1 if the wait was ended; the number; and the number of the
-- session.
SET SESSION wait_timeout = :silence, @dlock_has = GET_LOCK(:lock, :seconds) /*dlock :mark*/;
UPDATE :fence SET last = LAST_INSERT_ID(GREATEST(last + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))))
    WHERE bucket = CRC32(:name) % 1024 AND @dlock_has = 1;
SELECT COALESCE(@dlock_has, -1), LAST_INSERT_ID(), CONNECTION_ID()
