-- A sign of life. A session that has waited may be silent for the claim's ttl from now on. A server that has become read-only refuses: others take the lock on another one.
-- In: lock: its name; silence: in seconds. Out: a row with 1 if this session has the lock, else 0; and 0, as this is no watch.
:writable, SESSION wait_timeout = :silence;
SELECT COALESCE(IS_USED_LOCK(:lock) = CONNECTION_ID(), 0), 0
