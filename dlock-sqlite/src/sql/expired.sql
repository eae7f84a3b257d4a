-- Binds: 1 name, 2 now. Answer: the claims that nobody renewed for their ttl.
SELECT name, seq, claim, kind, slots, client, pid, host, who, since, expires FROM dlock_queue
WHERE name = ?1 AND expires <= ?2
