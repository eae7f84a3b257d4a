-- Releases a named lock. In: lock: its name. Out: a row with `had_lock`: 1 if this session owned
-- it.
SELECT COALESCE(RELEASE_LOCK(:lock), 0) AS had_lock
