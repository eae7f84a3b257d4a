-- Gives a claim of this client that has not expired a later end, never an earlier one. Never makes a claim.
-- Binds: 1 claim, 2 now, 3 expires, 4 client. Answer: one changed row, or none if the claim is gone or another client's.
UPDATE dlock_queue SET expires = max(expires, ?3) WHERE claim = ?1 AND client = ?4 AND expires > ?2
