-- Extends an unexpired claim of this client, and never shortens it. Never creates a claim.
-- In: 1 claim, 2 now, 3 expires, 4 client. Out: one changed row, or none if the claim has expired,
-- was deleted or belongs to another client.
UPDATE dlock_queue SET expires = max(expires, ?3) WHERE claim = ?1 AND client = ?4 AND expires > ?2
