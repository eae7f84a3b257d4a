-- Asks whether a session owns a named lock. In: lock: the named lock; id: the connection id. Out: a
-- row with `has_lock`.
:writable;
SELECT COALESCE(IS_USED_LOCK(:lock) = :id, 0) AS has_lock
