-- Renews a hold. From now on the session may be silent for the claim's ttl, also if it waited for
-- the lock. Fails on a server that has become read-only, because other clients take the lock on
-- another server.
-- In: lock: its name; silence: seconds.
-- Out: a row with `has_lock`: 1 if this session owns the lock; and `got_anchor`: 0.
:writable, SESSION wait_timeout = :silence;
SELECT COALESCE(IS_USED_LOCK(:lock) = CONNECTION_ID(), 0) AS has_lock, 0 AS got_anchor
