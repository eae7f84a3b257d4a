-- Asks whether a session is alive. In: tag: the named lock that only this session owns; id: its
-- connection id. Out: a row with `is_alive`.
:writable;
SELECT COALESCE(IS_USED_LOCK(:tag) = :id, 0) AS is_alive
