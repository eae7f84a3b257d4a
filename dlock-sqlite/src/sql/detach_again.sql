-- Extends the time of a detached claim, and never shortens it.
-- In: 1 ticket, 2 now, 3 expires, 4 the same expiry in nanoseconds since 1970. Out: one changed
-- row, or none if the claim has expired or was deleted.
UPDATE dlock_queue SET expires = max(expires, ?3), until = max(until, ?4)
WHERE claim = ?1 AND expires > ?2 AND until IS NOT NULL
