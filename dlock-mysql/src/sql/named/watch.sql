-- Waits on the session that owns a lock until the client releases the anchor, or until the time is
-- over. The client notices the end of the session at once. Fails at the end on a server that has
-- become read-only, as renew.sql.
-- In: anchor: the named lock that the client owns on another session; seconds: time to wait; lock:
-- the named lock; comment: the claim.
-- Out: a row with `has_lock`: 1 if this session owns the lock; and `got_anchor`: 1 if the client
-- released the anchor.
SET @dlock_anchor = GET_LOCK(:anchor, :seconds) /*dlock :comment*/;
DO IF(@dlock_anchor = 1, RELEASE_LOCK(:anchor), 0);
:writable;
SELECT COALESCE(IS_USED_LOCK(:lock) = CONNECTION_ID(), 0) AS has_lock, COALESCE(@dlock_anchor, 0) AS got_anchor
