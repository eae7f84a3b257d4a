-- Waits with the session of a lock until the client asks for an answer, or the time is over. So the end of the session is heard of
-- at once. A server that has become read-only refuses at the end, as with named_renew.sql.
-- In: watch: the named lock that the client keeps elsewhere, and releases to get an answer; seconds: how long to wait; lock: its
-- name; mark: who has the lock. Out: a row with 1 if this session has the lock, else 0; and 1 if the client asked.
SET @dlock_asked = GET_LOCK(:watch, :seconds) /*dlock :mark*/;
DO IF(@dlock_asked = 1, RELEASE_LOCK(:watch), 0);
:writable;
SELECT COALESCE(IS_USED_LOCK(:lock) = CONNECTION_ID(), 0), COALESCE(@dlock_asked, 0)
