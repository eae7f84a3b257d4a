-- Keeps a claim alive that has not expired; never makes one.
-- Binds: 1 claim, 2 now, 3 expires. Answer: one row changed, or none if it is gone.
UPDATE dlock_queue SET expires = ?3 WHERE claim = ?1 AND expires > ?2
