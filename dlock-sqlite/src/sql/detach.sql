-- Makes a claim that has not expired nobody's, until a given end. Nobody's id is all zeros.
-- Binds: 1 claim, 2 now, 3 expires, 4 the same end in nanoseconds since 1970. Answer: one changed row, or none if the claim is
-- gone.
UPDATE dlock_queue SET expires = ?3, until = ?4, client = zeroblob(16) WHERE claim = ?1 AND expires > ?2
