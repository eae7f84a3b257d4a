-- In: lock: its name; id: of a session. Out: a row with 1 if that session has the lock, else 0.
:writable;
SELECT COALESCE(IS_USED_LOCK(:lock) = :id, 0)
