-- Ends the session that has a named lock, if it is this one. In: lock: its name; id: of the session. Out: nothing.
:writable;
KILL CONNECTION IF(IS_USED_LOCK(:lock) = :id, :id, 0)
