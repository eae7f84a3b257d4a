-- In: lock: its name. Out: a row with 1 if this session had the lock, else 0.
SELECT COALESCE(RELEASE_LOCK(:lock), 0)
