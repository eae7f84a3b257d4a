-- Gives a claim that has not expired to its ticket, without a client, until a given end. The client of no one is all zeros.
-- Binds: 1 claim, 2 now, 3 expires, 4 the same end in nanoseconds since 1970, 5 ticket. Answer: one changed row, or none if the
-- claim is gone.
UPDATE dlock_queue SET claim = ?5, expires = ?3, until = ?4, client = zeroblob(16) WHERE claim = ?1 AND expires > ?2
