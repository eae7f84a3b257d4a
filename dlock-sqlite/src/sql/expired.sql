-- Reads the claims of a lock that were not renewed within their ttl. In: 1 name, 2 now.
-- Out: their rows.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1 AND expires <= ?2
