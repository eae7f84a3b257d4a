-- A sign of life. A server that has become read-only refuses: others take the lock on another one.
-- In: lock: its name. Out: a row with 1 if this session has the lock, else 0; and 0, as this is no watch.
:writable;
SELECT COALESCE(IS_USED_LOCK(:lock) = CONNECTION_ID(), 0), 0
