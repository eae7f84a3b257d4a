-- Gives a claim that has not expired a later end. Never makes a claim.
-- Binds: 1 claim, 2 now, 3 expires. Answer: one changed row, or none if the claim is gone.
UPDATE dlock_queue SET expires = ?3 WHERE claim = ?1 AND expires > ?2
