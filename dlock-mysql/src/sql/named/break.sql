-- Ends the session that owns a named lock, if it is the given one. In: lock: the named lock; id:
-- the connection id. Out: nothing.
:writable;
KILL CONNECTION IF(IS_USED_LOCK(:lock) = :id, :id, 0)
