-- In: tag: the named lock that only one session has; id: of that session. Out: a row with 1 if the session lives, else 0.
:writable;
SELECT COALESCE(IS_USED_LOCK(:tag) = :id, 0)
