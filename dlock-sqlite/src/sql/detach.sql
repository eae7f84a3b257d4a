-- Renames an unexpired claim to its ticket, with the given expiry and without a client. A client of
-- zeros means no client. In: 1 claim, 2 now, 3 expires, 4 the same expiry in nanoseconds since
-- 1970, 5 ticket. Out: one changed row, or none if the claim has expired or was deleted.
UPDATE dlock_queue SET claim = ?5, expires = ?3, until = ?4, client = zeroblob(16) WHERE claim = ?1 AND expires > ?2
