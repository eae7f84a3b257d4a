-- Extends the time of a detached claim, and never shortens it.
-- Binds: 1 ticket, 2 now, 3 expires, 4 the same end in nanoseconds since 1970. Answer: one changed row, or none if the claim is
-- gone.
UPDATE dlock_queue SET expires = max(expires, ?3), until = max(until, ?4)
WHERE claim = ?1 AND expires > ?2 AND until IS NOT NULL
